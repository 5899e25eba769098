"""Batches of volumes, which worker processes read and decompress while others are trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from convoy.data.batches import Batch, ResumableDataset
from convoy.data.prefetch import Prefetcher

from cosmoflow.volume_files import Volumes


@dataclass(frozen=True)
class MakeVolumes:
    """Makes a batch of volumes; in a process of its own, or in this one."""

    volumes: Volumes
    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size, *self.volumes.shape)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    def run(self, task: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Fill an array with volumes, and return their targets."""
        return np.stack(
            [
                self.volumes.read(int(index), volume)
                for index, volume in zip(task, out, strict=False)
            ]
        )


class Order(Protocol):
    """Which volumes are in which batch of the run."""

    def indices(self, position: int) -> np.ndarray: ...


class FileOrder:
    """Which samples are in which batch of a run whose every replica takes a batch in a step.

    Files are shuffled, and the samples of one come one after the other. Every shard has files of
    its own, and the replicas of a process take samples of one shard only.

    Args:
        files: how many.
        per_file: samples of each.
        size: samples in a batch.
        replicas: how many take a batch in a step.
        shards: into how many parts the files are divided, by processes.
        shuffle: whether each epoch has an order of its own.
        seed: decides orders, together with epoch and shard.

    Raises:
        ValueError: if the samples do not divide.
    """

    def __init__(
        self,
        files: int,
        per_file: int,
        size: int,
        *,
        replicas: int = 1,
        shards: int = 1,
        shuffle: bool,
        seed: int,
    ) -> None:
        if files % shards:
            raise ValueError(
                f"{files} files do not divide over {shards} processes. Ask for the samples of "
                f"{files - files % shards or shards} files, or set data.shard to false."
            )
        samples, step = files * per_file, replicas * size
        if not samples or samples % step:
            raise ValueError(
                f"{samples} samples are not whole steps of {replicas} replicas x "
                f"micro_batch_size {size}. Ask for {samples - samples % step or step}."
            )
        self.files, self.per_file, self.size = files, per_file, size
        self.replicas, self.shards = replicas, shards
        self.shuffle, self.seed = shuffle, seed
        self.num_batches = samples // size
        # The orders of an epoch are drawn once, and kept while workers begin with the next.
        self._drawn: dict[tuple[int, int], np.ndarray] = {}

    def shard_of(self, number: int) -> int:
        """Return from which shard a batch of an epoch is."""
        return number % self.replicas // (self.replicas // self.shards)

    def files_of(self, shard: int) -> range:
        """Return the files of a shard."""
        return range(shard, self.files, self.shards)

    def indices(self, position: int) -> np.ndarray:
        """Return the samples of a batch, counted from the run's first."""
        epoch, number = divmod(position, self.num_batches)
        step, replica = divmod(number, self.replicas)
        shard, lane = divmod(replica, self.replicas // self.shards)
        first = (step * (self.replicas // self.shards) + lane) * self.size
        return self._pass(epoch, shard)[first : first + self.size]

    def _pass(self, epoch: int, shard: int) -> np.ndarray:
        key = epoch, shard
        if key not in self._drawn:
            if len(self._drawn) >= 2 * self.shards:
                self._drawn.clear()
            files = np.array(self.files_of(shard))
            if self.shuffle:
                files = np.random.default_rng((self.seed, epoch, shard)).permutation(files)
            numbers = files[:, None] * self.per_file + np.arange(self.per_file)
            self._drawn[key] = numbers.reshape(-1)
        return self._drawn[key]


class VolumeBatches(ResumableDataset):
    """Batches of volumes, for `fit`, `evaluate` and `predict`.

    Args:
        make: what makes a batch.
        order: which volumes are in it.
        num_batches: of an epoch.
        workers: processes that make batches ahead; 0 makes each where and when it is asked for.
        prefetch: how many batches they may be ahead.
    """

    def __init__(
        self, make: MakeVolumes, order: Order, num_batches: int, workers: int, prefetch: int
    ) -> None:
        super().__init__(num_batches)
        self.make = make
        self.order = order
        slots = -(-prefetch // workers) if workers else 0
        self._prefetcher = Prefetcher(make, order.indices, workers, slots)

    def __getitem__(self, number: int) -> Batch:
        volumes, targets = self._prefetcher.take(self.position(number))
        return volumes[: len(targets)], targets

    def close(self) -> None:
        """End the worker processes."""
        self._prefetcher.close()
