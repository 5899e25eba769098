"""Batches of volumes that worker processes read and decompress in advance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from convoy.data.batches import Batch, ResumableDataset
from convoy.data.worker_pool import Prefetcher

from cosmoflow.volume_files import Volumes


@dataclass(frozen=True)
class VolumeJob:
    """Assembles batches of volumes, in a worker process or in this one.

    Attributes:
        volumes: the samples.
        batch_size: samples in a batch.
    """

    volumes: Volumes
    batch_size: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch_size, *self.volumes.shape)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    def run(self, task: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Fill an array with volumes and return their targets.

        Args:
            task: indices of the samples; fewer than `batch_size` in an incomplete batch.
            out: array of shape `shape`.
        """
        return np.stack(
            [
                self.volumes.read(int(index), volume)
                for index, volume in zip(task, out, strict=False)
            ]
        )


class Order(Protocol):
    """The order of samples over a run."""

    def indices(self, position: int) -> np.ndarray:
        """Return the samples of a batch.

        Args:
            position: index of the batch in the run.
        """
        ...


class FileOrder:
    """Order of samples in which each replica takes one batch per step.

    Files are shuffled, and the samples of a file follow each other. Each shard has its own files,
    and the replicas of a process take samples of one shard only.

        step          0                       1
        replica       0     1     2     3     0     1     2     3
        batch         0     1     2     3     4     5     6     7
        shard         0     0     1     1     0     0     1     1      (2 processes)

    Args:
        files: number of files.
        samples_per_file: number of samples in each.
        batch_size: samples in a batch.
        replicas: number of replicas.
        shards: number of parts into which the files are divided.
        shuffle: whether the order of files differs in each epoch.
        seed: seed of the orders, together with epoch and shard.

    Raises:
        ValueError: if files or samples do not divide evenly.
    """

    def __init__(
        self,
        files: int,
        samples_per_file: int,
        batch_size: int,
        *,
        replicas: int = 1,
        shards: int = 1,
        shuffle: bool,
        seed: int,
    ) -> None:
        if files % shards:
            raise ValueError(
                f"{files} files do not divide over {shards} processes. Use the samples of "
                f"{files - files % shards or shards} files, or set data.shard to false."
            )
        samples, step = files * samples_per_file, replicas * batch_size
        if not samples or samples % step:
            raise ValueError(
                f"{samples} samples are not a multiple of a step: {replicas} replicas x "
                f"micro_batch_size {batch_size}. Use {samples - samples % step or step}."
            )
        self.files, self.samples_per_file, self.batch_size = files, samples_per_file, batch_size
        self.replicas, self.shards = replicas, shards
        self.shuffle, self.seed = shuffle, seed
        self.num_batches = samples // batch_size
        # Orders are kept for two epochs: workers start on the next one before this one ends.
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def shard_of(self, number: int) -> int:
        """Return the shard of a batch of an epoch."""
        return number % self.replicas // (self.replicas // self.shards)

    def files_of(self, shard: int) -> range:
        """Return the files of a shard."""
        return range(shard, self.files, self.shards)

    def indices(self, position: int) -> np.ndarray:
        epoch, number = divmod(position, self.num_batches)
        step, replica = divmod(number, self.replicas)
        shard, local_replica = divmod(replica, self.replicas // self.shards)
        first = (step * (self.replicas // self.shards) + local_replica) * self.batch_size
        return self._order(epoch, shard)[first : first + self.batch_size]

    def _order(self, epoch: int, shard: int) -> np.ndarray:
        key = epoch, shard
        if key not in self._orders:
            if len(self._orders) >= 2 * self.shards:
                self._orders.clear()
            files = np.array(self.files_of(shard))
            if self.shuffle:
                files = np.random.default_rng((self.seed, epoch, shard)).permutation(files)
            samples = files[:, None] * self.samples_per_file + np.arange(self.samples_per_file)
            self._orders[key] = samples.reshape(-1)
        return self._orders[key]


class VolumeBatches(ResumableDataset):
    """A dataset of volumes for `fit`, `evaluate` and `predict`.

    Args:
        job: the job that assembles a batch.
        order: order of the samples.
        num_batches: batches in an epoch.
        workers: number of processes that prepare batches; 0 prepares each batch on request.
        prefetch: number of batches prepared in advance.
    """

    def __init__(
        self, job: VolumeJob, order: Order, num_batches: int, workers: int, prefetch: int
    ) -> None:
        super().__init__(num_batches)
        self.job = job
        self.order = order
        slots = -(-prefetch // workers) if workers else 0
        self._prefetcher = Prefetcher(job, order.indices, workers, slots)

    def __getitem__(self, number: int) -> Batch:
        volumes, targets = self._prefetcher.take(self.position(number))
        return volumes[: len(targets)], targets

    def close(self) -> None:
        """End the worker processes."""
        self._prefetcher.close()
