"""Input of a run: datasets of training and validation volumes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from convoy import distributed
from convoy.data.batches import Batch, SequentialOrder

from cosmoflow.run_plan import RunPlan
from cosmoflow.settings import Data
from cosmoflow.volume_batches import FileOrder, VolumeBatches, VolumeJob
from cosmoflow.volume_files import RandomVolumes, VolumeFiles, find_volumes, staged

# Folders of the record files, by the setting that has the number of samples.
FOLDERS = {"n_train": "train", "n_valid": "validation"}


@dataclass(frozen=True)
class Splits:
    """Training and validation volumes of a run."""

    train: VolumeFiles | RandomVolumes
    validation: VolumeFiles | RandomVolumes


@dataclass(frozen=True)
class Input:
    """Datasets of a run.

    Attributes:
        splits: the volumes.
        train: batches for training.
        validation: batches for validation, if there is any.
        plan: plan of the run.
    """

    splits: Splits
    train: VolumeBatches
    validation: VolumeBatches | None
    plan: RunPlan

    def is_local(self, number: int) -> bool:
        """Return whether a replica of this process takes a batch of an epoch."""
        return owner(number, self.plan) == distributed.index()

    def local_train_batches(self, first: int = 0) -> Iterator[Batch]:
        """Yield training batches without end, with zeros in place of those of other processes.

        Args:
            first: index in the run of the first batch.
        """
        job, batches = self.train.job, self.train.num_batches
        targets = np.zeros((job.batch_size, job.volumes.target_size), np.float32)
        zeros = np.zeros(job.shape, job.dtype), targets
        epoch, number = divmod(first, batches)
        self.train.set_state(epoch)
        while True:
            for place in range(number, batches):
                yield self.train[place] if self.is_local(place) else zeros
            self.train.on_epoch_end()
            number = 0


def owner(number: int, plan: RunPlan) -> int:
    """Return the index of the process whose replica takes a batch of an epoch."""
    return number % plan.batch.replicas // (plan.batch.replicas // distributed.count())


def open_splits(data: Data, seed: int) -> Splits:
    """Find or generate the volumes of a run.

    Raises:
        ValueError: if there are too few, or they have another shape.
    """
    shape, targets = data.sample_shape, data.target_shape[0]
    if data.data_dir is None or data.name == "dummy":
        return Splits(
            RandomVolumes(data.n_train, shape, targets, seed),
            RandomVolumes(data.n_valid, shape, targets, seed + 1),
        )
    found = {}
    for setting, folder in FOLDERS.items():
        samples = getattr(data, setting)
        try:
            found[folder] = (
                find_volumes(
                    data.data_dir / folder,
                    samples,
                    shape,
                    targets,
                    samples_per_file=data.samples_per_file,
                    apply_log=data.apply_log,
                    subtract_mean=data.subtract_mean,
                )
                if samples
                else VolumeFiles((), shape, targets)
            )
        except ValueError as error:
            raise ValueError(f"data.{setting} {samples}: {error}") from None
    return Splits(**found)


@contextlib.contextmanager
def open_input(plan: RunPlan, splits: Splits) -> Iterator[Input]:
    """Open the datasets of a run; worker processes start with the first batch.

    Raises:
        ValueError: if the samples do not divide over processes.
    """
    data, batch = plan.settings.data, plan.batch
    in_files = isinstance(splits.train, VolumeFiles)
    samples_per_file = data.samples_per_file if in_files else 1
    order = FileOrder(
        data.n_train // samples_per_file,
        samples_per_file,
        batch.micro_batch,
        replicas=batch.replicas,
        shards=distributed.count() if data.shard and in_files else 1,
        shuffle=data.shuffle_train,
        seed=plan.settings.train.seed,
    )
    validation_order = SequentialOrder(data.n_valid, batch.micro_batch)
    workers = len(os.sched_getaffinity(0)) if data.workers is None else data.workers
    if not in_files:
        # Random volumes are only copied, and a worker process would copy once more.
        workers = 0
    with contextlib.ExitStack() as stack:
        if data.staged_files:
            training_files = set(order.files_of(distributed.index() if data.shard else 0))
            splits = Splits(
                _staged(splits.train, training_files, data, stack),
                _staged(splits.validation, _validation_files(validation_order, plan), data, stack),
            )
        datasets = [
            VolumeBatches(
                VolumeJob(volumes, batch.micro_batch),
                samples,
                samples.num_batches,
                workers,
                data.prefetch,
            )
            for volumes, samples in ((splits.train, order), (splits.validation, validation_order))
        ]
        for dataset in datasets:
            stack.enter_context(contextlib.closing(dataset))
        train, validation = datasets
        yield Input(splits, train, validation if data.n_valid else None, plan)


def _validation_files(order: SequentialOrder, plan: RunPlan) -> set[int]:
    """Return the indices of the validation files that this process reads."""
    local = (n for n in range(order.num_batches) if owner(n, plan) == distributed.index())
    samples_per_file = plan.settings.data.samples_per_file
    return {int(sample) // samples_per_file for number in local for sample in order.indices(number)}


def _staged(
    volumes: VolumeFiles | RandomVolumes, files: set[int], data: Data, stack: contextlib.ExitStack
) -> VolumeFiles:
    if not isinstance(volumes, VolumeFiles):
        raise ValueError("data.staged_files: dummy data has no files. Set it to false.")
    return stack.enter_context(staged(volumes, sorted(files), data.stage_dir))
