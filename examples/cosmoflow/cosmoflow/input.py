"""What a run reads: volumes for training and validation, as batches that are made ahead."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from convoy import distributed
from convoy.data.batches import Batch, SequentialOrder

from cosmoflow.run_plan import Plan
from cosmoflow.settings import Data
from cosmoflow.staging import staged
from cosmoflow.volume_batches import FileOrder, MakeVolumes, VolumeBatches
from cosmoflow.volume_files import RandomVolumes, VolumeFiles, find_volumes

SPLITS = {"n_train": "train", "n_valid": "validation"}


@dataclass(frozen=True)
class Splits:
    """The volumes of a run."""

    train: VolumeFiles | RandomVolumes
    validation: VolumeFiles | RandomVolumes


@dataclass(frozen=True)
class Input:
    """The batches of a run, and which of a training epoch's this process needs."""

    splits: Splits
    train: VolumeBatches
    validation: VolumeBatches | None
    plan: Plan

    def is_own(self, number: int) -> bool:
        """Say whether a batch is taken by a replica of this process."""
        return owner(number, self.plan) == distributed.index()

    def own_train(self, first: int = 0) -> Iterator[Batch]:
        """Return training batches without end, with zeros for those that other processes read.

        Args:
            first: the place of the first of them, counted from the run's first.
        """
        make, batches = self.train.make, self.train.num_batches
        nothing = np.zeros(make.shape, make.dtype), np.zeros((make.size, self._targets), np.float32)
        epoch, number = divmod(first, batches)
        self.train.set_state(epoch)
        while True:
            for place in range(number, batches):
                yield self.train[place] if self.is_own(place) else nothing
            self.train.on_epoch_end()
            number = 0

    @property
    def _targets(self) -> int:
        return self.plan.settings.data.target_shape[0]


def owner(number: int, plan: Plan) -> int:
    """Return the process whose replica takes a batch of an epoch."""
    return number % plan.batch.replicas // (plan.batch.replicas // distributed.count())


def open_splits(data: Data, seed: int) -> Splits:
    """Find the volumes, or make some up.

    Raises:
        ValueError: if there are too few, or they are not what was asked for.
    """
    shape, targets = data.sample_shape, data.target_shape[0]
    if data.name == "dummy":
        return Splits(
            RandomVolumes(data.n_train, shape, targets, seed),
            RandomVolumes(data.n_valid, shape, targets, seed + 1),
        )
    root = Path(os.path.expandvars(data.data_dir or ""))
    found = {}
    for setting, folder in SPLITS.items():
        samples = getattr(data, setting)
        try:
            found[folder] = (
                find_volumes(
                    root / folder,
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
def open_input(plan: Plan, splits: Splits) -> Iterator[Input]:
    """Copy files, if asked to, and start workers when the first batch is asked for.

    Raises:
        ValueError: if the samples do not divide over distributed.
    """
    data, batch = plan.settings.data, plan.batch
    files = isinstance(splits.train, VolumeFiles)
    per_file = data.samples_per_file if files else 1
    order = FileOrder(
        data.n_train // per_file,
        per_file,
        batch.micro_batch,
        replicas=batch.replicas,
        shards=distributed.count() if data.shard and files else 1,
        shuffle=data.shuffle_train,
        seed=plan.settings.train.seed,
    )
    held_out = SequentialOrder(data.n_valid, batch.micro_batch)
    cores = len(os.sched_getaffinity(0))
    # Random volumes are only copied; a process for that would copy once more.
    workers = 0 if not files else cores if data.workers is None else data.workers
    with contextlib.ExitStack() as stack:
        if data.staged_files:
            splits = Splits(
                _staged(splits.train, set(_files_to_train(order, data)), data, stack),
                _staged(splits.validation, _files_to_validate(held_out, plan), data, stack),
            )
        made = [
            stack.enter_context(
                contextlib.closing(
                    VolumeBatches(
                        MakeVolumes(volumes, batch.micro_batch),
                        choice,
                        choice.num_batches,
                        workers,
                        data.prefetch,
                    )
                )
            )
            for volumes, choice in ((splits.train, order), (splits.validation, held_out))
        ]
        yield Input(splits, made[0], made[1] if data.n_valid else None, plan)


def _files_to_train(order: FileOrder, data: Data) -> range:
    return order.files_of(distributed.index() if data.shard else 0)


def _files_to_validate(order: SequentialOrder, plan: Plan) -> set[int]:
    own = (n for n in range(order.num_batches) if owner(n, plan) == distributed.index())
    per_file = plan.settings.data.samples_per_file
    return {int(sample) // per_file for number in own for sample in order.indices(number)}


def _staged(
    volumes: VolumeFiles | RandomVolumes, wanted: set[int], data: Data, stack: contextlib.ExitStack
) -> VolumeFiles | RandomVolumes:
    if not isinstance(volumes, VolumeFiles):
        raise ValueError("data.staged_files: dummy data is in no files. Set it to false.")
    folder = None if data.stage_dir is None else Path(os.path.expandvars(data.stage_dir))
    return stack.enter_context(staged(volumes, sorted(wanted), folder))
