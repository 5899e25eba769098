"""Faster forms of operations, and fusion with their neighbours, while a model is traced."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from convoy.cpu import kernel_dtypes, library
from convoy.cpu.affine_transform import affine_transform
from convoy.cpu.batch_normalization import Average, Operands, moments, normalize
from convoy.types import Tensor

Operation = Callable[..., Tensor]
"""An operation of Keras's backend."""

# Keras writes batch normalisation as moments and an affine map. Often an addition and a ReLU
# follow:
#
#     mean, variance = moments(x)
#     y = batch_normalization(x, mean, variance, ...)
#     z = y + shortcut
#     out = relu(z)
#
# A `Fusion` replaces these operations. Each one looks up where its operand came from, by the
# identity of the traced array. If that is the operation before it, it computes both at once from
# the first one's operands:
#
#     relu(z)  ->  normalize(x, mean, variance, ..., addend=shortcut, relu=True)
#
# `y` and `z` are traced too. If no other layer reads them, XLA removes them.
#
# In 16 bits there are casts around these operations, which the kernels make unnecessary: they read
# and write 16 bits and compute in float32.
#
#     x32 = cast(x, float32)          mean, variance = moments(x32)     ->  moments(x)
#     y = batch_normalization(x32, ...)
#     y16 = cast(y, bfloat16)                                           ->  normalize(x, ...)


class Normalized(NamedTuple):
    """The result of a batch normalisation, perhaps with an addition, and what it is computed from.

    It keeps the result alive, so that no other array gets its `id`. If the input was cast to
    float32 before, `narrow` is what it was cast from.
    """

    result: jax.Array
    operands: Operands
    epsilon: float
    narrow: jax.Array | None = None


class Fusion:
    """Replacements for operations of Keras's backend, for the time of one trace.

    Args:
        average: mean over the devices that share statistics; `None` if each has its own.
    """

    def __init__(self, average: Average | None = None) -> None:
        self._average = average
        # Keyed by the `id` of the mean, and of the result. Input, mean and variance stay alive.
        self._moments: dict[int, tuple[jax.Array, jax.Array, jax.Array]] = {}
        self._normalized: dict[int, Normalized] = {}
        # By the `id` of an array in float32: that array, and the one in 16 bits it was cast from.
        self._widened: dict[int, tuple[jax.Array, jax.Array]] = {}

    def cast(self, original: Operation, x: Tensor, dtype: str) -> Tensor:
        result = original(x, dtype)
        found = self._normalized.get(id(x))
        if found is not None and found.narrow is not None and result.dtype == found.narrow.dtype:
            operands = found.operands._replace(x=found.narrow)
            y = self._compute(operands, found.epsilon, relu=False)
            self._normalized[id(y)] = Normalized(y, operands, found.epsilon)
            return y
        if isinstance(x, jax.Array) and x.dtype.itemsize < 4 and result.dtype == jnp.float32:
            self._widened[id(result)] = (result, x)
        return result

    def moments(
        self,
        original: Operation,
        x: Tensor,
        axes: int | Sequence[int],
        keepdims: bool = False,
        **options: bool,
    ) -> Tensor:
        if keepdims or any(options.values()) or not _is_batch_statistics(x, axes):
            return original(x, axes, keepdims=keepdims, **options)
        mean, variance = moments(self._narrow(x))
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
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        axis: int,
        offset: Tensor = None,
        scale: Tensor = None,
        epsilon: float = 1e-3,
    ) -> Tensor:
        source = self._moments.get(id(mean))
        # Moving statistics, or those of another array, have no kernel.
        if source is None or source[0] is not x or source[2] is not variance:
            return original(x, mean, variance, axis, offset, scale, epsilon)
        scale = jnp.ones_like(mean) if scale is None else scale
        offset = jnp.zeros_like(mean) if offset is None else offset
        operands = Operands(x, mean, variance, scale, offset)
        y = self._compute(operands, float(epsilon), relu=False)
        narrow = self._narrow(x)
        self._normalized[id(y)] = Normalized(
            y, operands, float(epsilon), None if narrow is x else narrow
        )
        return y

    def add(self, original: Operation, x1: Tensor, x2: Tensor) -> Tensor:
        total = original(x1, x2)
        for summand, other in ((x1, x2), (x2, x1)):
            found = self._normalized.get(id(summand))
            if found is None or found.operands.addend is not None:
                continue
            if _is_like(other, total):
                operands = found.operands._replace(addend=other)
                self._normalized[id(total)] = Normalized(total, operands, found.epsilon)
                break
        return total

    def relu(self, original: Operation, x: Tensor) -> Tensor:
        del original
        found = self._normalized.get(id(x))
        if found is None:
            return relu(jnp.asarray(x))
        return self._compute(found.operands, found.epsilon, relu=True)

    affine_transform = staticmethod(affine_transform)

    def _narrow(self, x: jax.Array) -> jax.Array:
        """Return the array in 16 bits that `x` was cast from, if it was."""
        return self._widened[id(x)][1] if id(x) in self._widened else x

    def _compute(self, operands: Operands, epsilon: float, *, relu: bool) -> jax.Array:
        # The gradient for x includes the paths through mean and variance.
        mean, variance = jax.lax.stop_gradient((operands.mean, operands.variance))
        operands = operands._replace(mean=mean, variance=variance)
        return normalize(operands, epsilon, relu, self._average)


@jax.custom_jvp
def relu(x: jax.Array) -> jax.Array:
    """Return the positive part of `x`.

    The gradient depends on the result, which is zero where the operand was not positive. As a rule
    the next layer keeps the result anyway, so the operand need not be kept as well.
    """
    return jnp.maximum(x, 0)


@relu.defjvp
def _relu_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    y = relu(*primals)
    return y, jnp.where(y > 0, *tangents, 0)


def _is_like(x: Tensor, other: jax.Array) -> bool:
    """Return whether two arrays have the same shape and type."""
    return isinstance(x, jax.Array) and (x.shape, x.dtype) == (other.shape, other.dtype)


def _is_batch_statistics(x: Tensor, axes: int | Sequence[int]) -> bool:
    """Return whether moments over `axes` are those of a batch normalisation with a kernel."""
    rank = getattr(x, "ndim", 0)
    # Channels last: all axes but the last one are reduced.
    channels_last = rank and set(np.atleast_1d(axes) % rank) == set(range(rank - 1))
    if not channels_last or not x.size:
        return False
    return library.find_for(kernel_dtypes.BATCH_NORMALIZATION, x) is not None
