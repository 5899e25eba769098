"""Operations that a share of a batch cannot do by itself.

A replica sees its share of a batch, a micro-batch is a share of a weight update. The mean of the
losses of all shares is the loss of the batch, but for losses that are sums, or divided by the
weights of the batch, or by what a mask keeps of it; and statistics that replicas share are not
those of one replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from convoy.engine.replica_axis import AXIS, replicas_in_trace
from convoy.engine.step.loss_denominators import whole

Operation = Callable[..., Any]


class GlobalBatch:
    """Keras's operations, as they are on one share of a batch.

    Args:
        shares: how many shares the mean is later taken over.
        batch_norm_group: replicas that share batch-normalisation statistics.
        unseen: shares that run in programs of their own, with this one.
    """

    def __init__(self, shares: int, batch_norm_group: int = 1, unseen: int = 1) -> None:
        self.shares = shares
        self.batch_norm_group = batch_norm_group
        self.unseen = unseen

    def reduce_values(
        self,
        original: Operation,
        values: Any,
        sample_weight: Any = None,
        reduction: str = "sum_over_batch_size",
    ) -> Any:
        """Reduce the losses of samples."""
        loss = original(values, sample_weight, reduction)
        if reduction == "sum":
            return loss * self.shares
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            return loss * self._part_of_mean(jnp.sum(sample_weight))
        return loss

    def apply_mask(
        self, original: Operation, sample_weight: Any, mask: Any, dtype: Any, reduction: Any
    ) -> Any:
        """Put a mask into the weights of samples, so that their mean is over what it keeps."""
        weights = original(sample_weight, mask, dtype, reduction)
        if mask is None or reduction not in ("mean", "sum_over_batch_size"):
            return weights
        return weights * self._part_of_mean(jnp.sum(mask, dtype=dtype))

    def _part_of_mean(self, own: jax.Array) -> jax.Array:
        """Return what a share has of that which a loss divides by, as a part of the mean share.

        Raises:
            ValueError: if other shares cannot be asked.
        """
        if self.unseen > 1:
            raise ValueError(
                "The loss divides by how much of its batch a mask keeps, or by the weights of its "
                f"samples, but each of {self.unseen} micro-batches in a pipeline sees itself only. "
                "Use a loss with reduction='sum', or train the model without stages."
            )
        mean = whole(own)
        return jnp.where(mean == 0, 0, own / jnp.where(mean == 0, 1, mean))

    def moments(self, original: Operation, *args: Any, **kwargs: Any) -> Any:
        """Return mean and variance of batch normalisation."""
        mean, variance = original(*args, **kwargs)
        if self.batch_norm_group == 1:
            return mean, variance
        dtype = mean.dtype
        own = mean.astype(jnp.float32)
        whole = self.over_group(own)
        sharded = self.over_group(variance.astype(jnp.float32) + (own - whole) ** 2)
        return whole.astype(dtype), sharded.astype(dtype)

    def over_group(self, value: jax.Array) -> jax.Array:
        """Average over the replicas that share statistics, if there are several."""
        replicas = replicas_in_trace()
        size = min(self.batch_norm_group, replicas)
        if size == 1:
            return value
        groups = [list(range(first, first + size)) for first in range(0, replicas, size)]
        return jax.lax.pmean(value, AXIS, axis_index_groups=groups)
