"""The arithmetic of batches: micro-batches, replicas, accumulation, weight updates, epochs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchConfig:
    """How many samples make a weight update, and how they are divided.

    Args:
        micro_batch: samples that a replica takes at a time.
        replicas: copies of the model.
        accumulation: micro-batches per weight update and replica.

    Raises:
        ValueError: if one of them is not a positive number.
    """

    micro_batch: int
    replicas: int = 1
    accumulation: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"{name}={value!r} is not a positive whole number. Pass 1 or more."
                )

    @classmethod
    def of_global(cls, global_batch: int, micro_batch: int, replicas: int = 1) -> BatchConfig:
        """Choose the accumulation that comes nearest to a global batch.

        Where micro-batches and replicas do not divide it, a warning says what it becomes.
        """
        if global_batch < 1:
            raise ValueError(f"global_batch={global_batch} is not a positive whole number.")
        unit = cls(micro_batch, replicas).global_batch
        config = cls(micro_batch, replicas, max(1, (2 * global_batch + unit) // (2 * unit)))
        if config.global_batch != global_batch:
            warnings.warn(
                f"A global batch of {global_batch} is not a multiple of micro-batch {micro_batch} "
                f"x {replicas} replicas = {unit}; {config.global_batch} is used, with "
                f"{config.accumulation} micro-batches accumulated.",
                stacklevel=2,
            )
        return config

    @property
    def global_batch(self) -> int:
        """Samples in a weight update."""
        return self.micro_batch * self.replicas * self.accumulation

    @property
    def micro_batches_per_update(self) -> int:
        """Micro-batches in a weight update, over all replicas."""
        return self.replicas * self.accumulation

    def updates_per_epoch(self, samples: int) -> int:
        """Return how many whole weight updates some samples make."""
        return samples // self.global_batch

    def micro_batches_per_epoch(self, samples: int) -> int:
        """Return how many micro-batches, over all replicas, these updates take."""
        return self.updates_per_epoch(samples) * self.micro_batches_per_update
