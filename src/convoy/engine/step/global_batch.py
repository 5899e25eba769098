"""Losses, metrics and statistics of the global batch, computed from local batches.

A replica computes on its shard of a micro-batch (the local batch), and a weight update consists of
several micro-batches. The loss of the global batch is the mean of the losses of all local batches,
with these exceptions:

- losses that are sums;
- losses that are divided by the sample weights, or by the number of unmasked values. Their
  denominator is a sum over the global batch, but a local batch has only its own part;
- batch normalisation with statistics over several replicas;
- custom metrics, whose state may be of any kind.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import keras_bridge
from convoy.context import bound
from convoy.engine.data.placement import AXIS, tree_zeros
from convoy.engine.step.all_reduce import replicas_in_trace
from convoy.types import Arrays, Batch, Logs, PyTree

Operation = Callable[..., PyTree]
MetricsUpdate = Callable[..., tuple[Logs, Arrays]]
"""Takes the state of the metrics, and the loss, inputs, targets, outputs and weights of a batch."""


@dataclass(frozen=True)
class GlobalBatch:
    """Keras's operations for a local batch; see `keras_bridge.replaced_operations`.

    Attributes:
        local_batches: number of local batches over which the mean is taken later.
        batch_norm_group: replicas that share batch-normalisation statistics.
        separate_programs: local batches that run in separate programs, as in a pipeline.
    """

    local_batches: int
    batch_norm_group: int = 1
    separate_programs: int = 1

    def reduce_values(
        self,
        original: Operation,
        values: jax.Array,
        sample_weight: jax.Array | None = None,
        reduction: str = "sum_over_batch_size",
    ) -> jax.Array:
        """Reduce the losses of samples."""
        loss = original(values, sample_weight, reduction)
        if reduction == "sum":
            return loss * self.local_batches
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            return loss * self._part_of_mean(jnp.sum(sample_weight))
        return loss

    def apply_mask(
        self,
        original: Operation,
        sample_weight: jax.Array | None,
        mask: jax.Array | None,
        dtype: str,
        reduction: str | None,
    ) -> jax.Array | None:
        """Apply a mask to the sample weights, so that the mean is over the unmasked values."""
        weights = original(sample_weight, mask, dtype, reduction)
        if mask is None or reduction not in ("mean", "sum_over_batch_size"):
            return weights
        return weights * self._part_of_mean(jnp.sum(mask, dtype=dtype))

    def _part_of_mean(self, own: jax.Array) -> jax.Array:
        """Return a local batch's denominator, divided by the mean over all local batches.

        Raises:
            ValueError: if the other local batches run in other programs.
        """
        if self.separate_programs > 1:
            raise ValueError(
                "The loss divides by a sum over the masks or sample weights of a global batch, but "
                f"each of {self.separate_programs} micro-batches in a pipeline has only its own "
                "part. Use a loss with reduction='sum', or train the model without stages."
            )
        mean = mean_denominator(own)
        return jnp.where(mean == 0, 0, own / jnp.where(mean == 0, 1, mean))

    def moments(
        self,
        original: Operation,
        x: jax.Array,
        axes: int | Sequence[int],
        keepdims: bool = False,
        **options: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """Return mean and variance over some axes; over the sample axis, those of the group."""
        mean, variance = original(x, axes, keepdims=keepdims, **options)
        # Layer and group normalisation compute their statistics per sample.
        if self.batch_norm_group == 1 or 0 not in np.atleast_1d(axes) % jnp.ndim(x):
            return mean, variance
        dtype = mean.dtype
        # At least float32: 16 bits would round the statistics of a replica before the average.
        own, own_variance = (
            value.astype(np.promote_types(dtype, jnp.float32)) for value in (mean, variance)
        )
        group_mean = self.over_group(own)
        group_variance = self.over_group(own_variance + (own - group_mean) ** 2)
        return group_mean.astype(dtype), group_variance.astype(dtype)

    def masked_moments(
        self,
        original: Operation,
        layer: keras.layers.BatchNormalization,
        x: jax.Array,
        mask: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Return mean and variance of batch normalisation over the unmasked values."""
        mean, variance = original(layer, x, mask)
        if self.batch_norm_group == 1 or mask is None:
            return mean, variance
        # The number of unmasked values differs between replicas, so sums are averaged, not means.
        kept = keras_bridge.count_kept(layer, x, mask)
        epsilon = keras.config.epsilon()  # which Keras adds to the denominator, once per batch
        denominator = self.over_group(kept) + epsilon / self._group_size()
        group_mean = self.over_group(mean * (kept + epsilon)) / denominator
        squares = variance * (kept + epsilon) + kept * (mean - group_mean) ** 2
        return group_mean, self.over_group(squares) / denominator

    def _group_size(self) -> int:
        return min(self.batch_norm_group, replicas_in_trace())

    def over_group(self, value: jax.Array) -> jax.Array:
        """Average over the replicas that share statistics, if there are several."""
        replicas, size = replicas_in_trace(), self._group_size()
        if size == 1:
            return value
        groups = [list(range(first, first + size)) for first in range(0, replicas, size)]
        return jax.lax.pmean(value, AXIS, axis_index_groups=groups)


# Denominators ------------------------------------------------------------------------------------
#
# Replicas run at the same time and exchange their parts of a denominator. The micro-batches of a
# weight update run one after the other, so a first pass over them sums up their parts:
#
#     micro-batch      0      1      2            0         1         2
#     own parts       d0  +  d1  +  d2   ->  mean d
#     gradients                               g(d0/d)   g(d1/d)   g(d2/d)
#
# The first pass traces the whole model, but XLA removes everything that the parts do not depend on.
# Usually only the data remains.


@dataclass
class Denominators:
    """The denominators of a loss over the global batch.

    Attributes:
        means: the means over all local batches, in the order in which the loss uses them; `None`
            while they are not known.
        are_used: whether the loss has used any.
    """

    means: Arrays | None = None
    are_used: bool = False


_denominators: ContextVar[Denominators | None] = ContextVar("convoy_denominators", default=None)
_own_parts: ContextVar[Arrays | None] = ContextVar("convoy_own_denominators", default=None)


def mean_denominator(own: jax.Array) -> jax.Array:
    """Return the mean of a denominator over all local batches, given that of this local batch."""
    denominators, parts = _denominators.get(), _own_parts.get()
    if denominators is None or parts is None:
        return _mean_over_replicas(own)
    parts.append(own)
    denominators.are_used = True
    return own if denominators.means is None else denominators.means[len(parts) - 1]


def use_denominators(denominators: Denominators) -> AbstractContextManager[Denominators | None]:
    """Use these denominators in losses that are traced in the block."""
    return bound(_denominators, denominators)


def number_denominators() -> AbstractContextManager[Arrays | None]:
    """Return a context that numbers the denominators of one loss, and yields the local ones."""
    return bound(_own_parts, [])


def mean_over_update(parts_at: Callable[[jax.Array], Arrays], gradient_accumulation: int) -> Arrays:
    """Return the mean denominators over the micro-batches of a weight update and all replicas.

    Args:
        parts_at: function that returns the denominators of a micro-batch, given its number.
        gradient_accumulation: the number of micro-batches.
    """

    def add(number: jax.Array, total: Arrays) -> Arrays:
        return jax.tree.map(jnp.add, total, parts_at(number))

    with use_denominators(Denominators()):
        parts = jax.eval_shape(parts_at, jnp.int32(0))
        totals = jax.lax.fori_loop(0, gradient_accumulation, add, tree_zeros(parts))
    return [_mean_over_replicas(total / gradient_accumulation) for total in totals]


def _mean_over_replicas(own: jax.Array) -> jax.Array:
    return jax.lax.pmean(own, AXIS) if replicas_in_trace() > 1 else own


# Metrics -----------------------------------------------------------------------------------------


def metrics_update(model: keras.Model) -> MetricsUpdate:
    """Return a function that updates the state of a model's metrics by one micro-batch.

    Keras's metrics accumulate sums, which are added over the replicas later. A custom metric can
    have any state, such as a maximum, so every replica updates it with the samples of all replicas.
    """
    users_own = keras_bridge.of_custom_metrics(model, model.metrics_variables)

    def update(metrics: Arrays, loss: jax.Array, *batch: Batch) -> tuple[Logs, Arrays]:
        logs, local = keras_bridge.update_metrics(model, metrics, loss, *batch)
        if replicas_in_trace() == 1 or not any(users_own):
            return logs, local
        mean = jax.lax.pmean(loss, AXIS)
        _, complete = keras_bridge.update_metrics(model, metrics, mean, *_gather(batch))
        choices = zip(users_own, complete, local, strict=True)
        return logs, [of_all if is_own else of_shard for is_own, of_all, of_shard in choices]

    return update


def _gather(batch: Batch) -> Batch:
    """Return the samples of all replicas, in their order, with the masks of outputs."""

    def gather(leaf: jax.Array) -> jax.Array:
        mask = keras_bridge.get_keras_mask(leaf)
        gathered = jax.lax.all_gather(leaf, AXIS, tiled=True)
        if mask is not None:
            keras_bridge.set_keras_mask(gathered, gather(mask))
        return gathered

    return jax.tree.map(gather, batch)
