"""Batch sizes: micro-batches, replicas, gradient accumulation, weight updates and epochs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from convoy.arguments import whole_number
from convoy.units import format_count


@dataclass(frozen=True)
class BatchConfig:
    """The batch of a weight update, and its division.

    Args:
        micro_batch: number of samples in a micro-batch of one replica.
        replicas: number of replicas.
        gradient_accumulation: number of micro-batches per weight update and replica.

    Raises:
        ValueError: if one of them is not a positive number.
    """

    micro_batch: int
    replicas: int = 1
    gradient_accumulation: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            whole_number(name, value, "a positive whole number")

    @classmethod
    def of_global(cls, global_batch: int, micro_batch: int, replicas: int = 1) -> BatchConfig:
        """Choose the accumulation that comes nearest to a global batch size.

        If the global batch is not divisible, a warning states the size that is used.
        """
        whole_number("global_batch", global_batch, "a positive whole number")
        unit = cls(micro_batch, replicas).global_batch
        config = cls(micro_batch, replicas, max(1, (2 * global_batch + unit) // (2 * unit)))
        if config.global_batch != global_batch:
            warnings.warn(
                f"A global batch of {global_batch} is not a multiple of micro-batch {micro_batch} "
                f"x {format_count(replicas, 'replica')} = {unit}; {config.global_batch} is used, "
                f"with {config.gradient_accumulation} micro-batches accumulated.",
                stacklevel=2,
            )
        return config

    @property
    def global_batch(self) -> int:
        """Number of samples in a weight update."""
        return self.micro_batch * self.replicas * self.gradient_accumulation

    @property
    def micro_batches_per_update(self) -> int:
        """Number of micro-batches in a weight update, over all replicas."""
        return self.replicas * self.gradient_accumulation

    def updates_per_epoch(self, samples: int) -> int:
        """Return the number of complete weight updates in an epoch."""
        return samples // self.global_batch
