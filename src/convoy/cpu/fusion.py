"""Finds batch normalisation, and what follows it, while a model is being traced.

Keras writes batch normalisation as moments and an affine map, then perhaps an addition, then
perhaps a rectifier. Each operation looks where its operand came from; where that is the operation
before it, both are done in one. What this has made superfluous, nobody reads, and XLA drops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from convoy.cpu.normalisation import Average, moments, normalise

Operation = Callable[..., Any]


class Normalised(NamedTuple):
    """The operands of a batch normalisation, and what is added to it."""

    x: jax.Array
    mean: jax.Array
    variance: jax.Array
    scale: jax.Array
    offset: jax.Array
    epsilon: float
    addend: jax.Array | None = None
    average: Average | None = None

    def compute(self, *, rectify: bool) -> jax.Array:
        # The gradient by way of mean and variance is part of that for x.
        mean, variance = jax.lax.stop_gradient((self.mean, self.variance))
        return normalise(
            self.x,
            mean,
            variance,
            self.scale,
            self.offset,
            self.addend,
            self.epsilon,
            rectify,
            self.average,
        )


class Fusion:
    """One trace's memory of which array came out of which operation.

    Args:
        average: the mean over devices that share statistics; `None` if each has its own.
    """

    def __init__(self, average: Average | None = None) -> None:
        self._average = average
        # By identity; the arrays are kept alive so that no identity comes twice.
        self._moments: dict[int, tuple[jax.Array, jax.Array, jax.Array]] = {}
        self._normalised: dict[int, tuple[jax.Array, Normalised]] = {}

    def moments(
        self, original: Operation, x: Any, axes: Any, keepdims: bool = False, **options: Any
    ) -> Any:
        if keepdims or any(options.values()) or not _fits(x, axes):
            return original(x, axes, keepdims=keepdims, **options)
        mean, variance = moments(x)
        if self._average is not None:
            whole = self._average(mean)
            variance = self._average(variance + (mean - whole) ** 2)
            mean = whole
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
        if source is None or source[0] is not x or source[2] is not variance:
            return original(x, mean, variance, axis, offset, scale, epsilon)
        found = Normalised(
            x,
            mean,
            variance,
            jnp.ones_like(mean) if scale is None else scale,
            jnp.zeros_like(mean) if offset is None else offset,
            float(epsilon),
            average=self._average,
        )
        y = found.compute(rectify=False)
        self._normalised[id(y)] = (y, found)
        return y

    def add(self, original: Operation, x1: Any, x2: Any) -> Any:
        total = original(x1, x2)
        for normalised, other in ((x1, x2), (x2, x1)):
            _, found = self._normalised.get(id(normalised), (None, None))
            if found and found.addend is None and getattr(other, "shape", None) == total.shape:
                self._normalised[id(total)] = (total, found._replace(addend=other))
                break
        return total

    def relu(self, original: Operation, x: Any) -> Any:
        del original
        _, found = self._normalised.get(id(x), (None, None))
        return found.compute(rectify=True) if found else rectify(jnp.asarray(x))


@jax.custom_jvp
def rectify(x: jax.Array) -> jax.Array:
    """Return what is positive, and zero for the rest.

    The gradient looks at the result, which is zero where the operand was not positive. As a rule
    the next layer keeps the result anyway, and the operand need not be kept beside it.
    """
    return jnp.maximum(x, 0)


@rectify.defjvp
def _rectify_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    y = rectify(*primals)
    return y, jnp.where(y > 0, *tangents, 0)


def _fits(x: Any, axes: Any) -> bool:
    """Say whether moments over `axes` are those of batch normalisation, channels last."""
    rank = getattr(x, "ndim", 0)
    normal = {axis % rank for axis in axes} if rank else set()
    return rank >= 2 and x.dtype == jnp.float32 and x.size > 0 and normal == set(range(rank - 1))
