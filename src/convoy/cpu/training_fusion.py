"""Fusion of batch normalisation with the operations around it, while a model is traced.

Keras writes batch normalisation as moments and an affine map. An addition and a ReLU often follow:

    mean, variance = moments(x)
    y = batch_normalization(x, mean, variance, ...)
    z = y + shortcut
    out = relu(z)

A `Fusion` stands in for these operations. Each one looks up where its operand came from, by the
identity of the traced array. If that is the operation before it, it computes both at once from the
first one's operands:

    relu(z)  ->  normalize(x, mean, variance, ..., addend=shortcut, relu=True)

`y` and `z` are computed too, but nothing reads them any more, and XLA removes them. If another
layer does read them, they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from convoy.cpu import kernel_table, library
from convoy.cpu.batch_normalization import Average, moments, normalize

Operation = Callable[..., Any]
"""An operation of Keras's backend, with its own arguments."""


class Normalized(NamedTuple):
    """The operands of a batch normalisation, and the array that is added to its result."""

    x: jax.Array
    mean: jax.Array
    variance: jax.Array
    scale: jax.Array
    offset: jax.Array
    epsilon: float
    addend: jax.Array | None = None
    average: Average | None = None

    def compute(self, *, relu: bool) -> jax.Array:
        # The gradient for x includes the paths through mean and variance.
        mean, variance = jax.lax.stop_gradient((self.mean, self.variance))
        return normalize(
            self.x,
            mean,
            variance,
            self.scale,
            self.offset,
            self.addend,
            self.epsilon,
            relu,
            self.average,
        )


class Fusion:
    """Replacements for operations of Keras's backend, for the time of one trace.

    Args:
        average: mean over the devices that share statistics; `None` if each has its own.
    """

    def __init__(self, average: Average | None = None) -> None:
        self._average = average
        # Keyed by `id`. The values keep the arrays alive, so that no `id` is used twice.
        self._moments: dict[int, tuple[jax.Array, jax.Array, jax.Array]] = {}
        self._normalized: dict[int, tuple[jax.Array, Normalized]] = {}

    def moments(
        self,
        original: Operation,
        x: Any,
        axes: Sequence[int],
        keepdims: bool = False,
        **options: bool,
    ) -> Any:
        if keepdims or any(options.values()) or not _is_batch_statistics(x, axes):
            return original(x, axes, keepdims=keepdims, **options)
        mean, variance = moments(x)
        if self._average is not None:
            # Statistics of several devices: variance of all = mean of (variance of each + squared
            # distance of its mean from the mean of all).
            global_mean = self._average(mean)
            variance = self._average(variance + (mean - global_mean) ** 2)
            mean = global_mean
        self._moments[id(mean)] = (x, mean, variance)
        return mean, variance

    def batch_normalization(
        self,
        original: Operation,
        x: Any,
        mean: Any,
        variance: Any,
        axis: int,
        offset: Any = None,
        scale: Any = None,
        epsilon: float = 1e-3,
    ) -> Any:
        source = self._moments.get(id(mean))
        # Moving statistics, or those of another array, have no kernel.
        if source is None or source[0] is not x or source[2] is not variance:
            return original(x, mean, variance, axis, offset, scale, epsilon)
        found = Normalized(
            x,
            mean,
            variance,
            jnp.ones_like(mean) if scale is None else scale,
            jnp.zeros_like(mean) if offset is None else offset,
            float(epsilon),
            average=self._average,
        )
        y = found.compute(relu=False)
        self._normalized[id(y)] = (y, found)
        return y

    def add(self, original: Operation, x1: Any, x2: Any) -> Any:
        total = original(x1, x2)
        for normalized, other in ((x1, x2), (x2, x1)):
            _, found = self._normalized.get(id(normalized), (None, None))
            if found and found.addend is None and getattr(other, "shape", None) == total.shape:
                self._normalized[id(total)] = (total, found._replace(addend=other))
                break
        return total

    def relu(self, original: Operation, x: Any) -> Any:
        del original
        _, found = self._normalized.get(id(x), (None, None))
        return found.compute(relu=True) if found else relu(jnp.asarray(x))


@jax.custom_jvp
def relu(x: jax.Array) -> jax.Array:
    """Return the positive part of `x`.

    The gradient depends on the result, which is zero where the operand was not positive. As a rule
    the next layer keeps the result anyway, and the operand need not be kept beside it.
    """
    return jnp.maximum(x, 0)


@relu.defjvp
def _relu_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    y = relu(*primals)
    return y, jnp.where(y > 0, *tangents, 0)


def _is_batch_statistics(x: Any, axes: Sequence[int]) -> bool:
    """Whether moments over `axes` are those of a batch normalisation with a kernel."""
    rank = getattr(x, "ndim", 0)
    # Channels last: all axes but the last one are reduced.
    channels_last = rank and {axis % rank for axis in axes} == set(range(rank - 1))
    if not channels_last or not x.size:
        return False
    return library.find_for(kernel_table.BATCH_NORMALIZATION, x) is not None
