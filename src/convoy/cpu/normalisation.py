"""Batch normalisation in training, with the addition and the rectifier that follow it, on a CPU.

One pass over the data finds mean and variance, one applies them; in the gradient one finds the sums
and one applies them. XLA's own form takes several more, and the rectifier and the addition of a
residual network another three.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from convoy.cpu import library, tally, threads

Average = Callable[[jax.Array], jax.Array]
"""The mean of a value over the devices that share statistics."""


@jax.custom_vjp
def moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mean and variance over all axes but the last."""
    tally.count("batch normalisation")
    channels = jax.ShapeDtypeStruct(x.shape[-1:], x.dtype)
    return _call("convoy_moments", (channels, channels), _rows(x))


def _moments_forward(x: jax.Array) -> tuple[tuple[jax.Array, jax.Array], Any]:
    mean, variance = moments(x)
    return (mean, variance), (x, mean)


def _moments_backward(kept: Any, gradients: tuple[jax.Array, jax.Array]) -> tuple[jax.Array]:
    x, mean = kept
    of_mean, of_variance = gradients
    count = x.size // x.shape[-1]
    return ((of_mean + 2 * of_variance * (x - mean)) / count,)


moments.defvjp(_moments_forward, _moments_backward)


@partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def normalise(
    x: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array,
    offset: jax.Array,
    addend: jax.Array | None,
    epsilon: float,
    rectify: bool,
    average: Average | None = None,
) -> jax.Array:
    """Return `(x - mean) / sqrt(variance + epsilon) * scale + offset`, plus what follows.

    Args:
        x: channels last.
        mean: of `x`, by channel.
        variance: of `x`, by channel. The gradient for `x` includes the way through mean and
            variance, so none is returned for these two.
        scale: by channel.
        offset: by channel.
        addend: is added, if it is not `None`.
        epsilon: is added to the variance.
        rectify: whether values below 0 become 0.
        average: if mean and variance are those of several devices' `x`, what averages over them.
    """
    del average  # only the gradient asks for it
    by_channel = jax.lax.rsqrt(variance + epsilon) * scale
    shift = offset - mean * by_channel
    rows = _rows(x)
    y = _call("convoy_affine", rows, rows, by_channel, shift, _optional(addend), rectify=rectify)
    return y.reshape(x.shape)


def _normalise_forward(
    x: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array,
    offset: jax.Array,
    addend: jax.Array | None,
    epsilon: float,
    rectify: bool,
    average: Average | None,
) -> tuple[jax.Array, Any]:
    y = normalise(x, mean, variance, scale, offset, addend, epsilon, rectify, average)
    kept = (x, mean, variance, scale, y if rectify else None, addend is not None)
    return y, kept


def _normalise_backward(
    epsilon: float, rectify: bool, average: Average | None, kept: Any, dy: jax.Array
) -> tuple:
    x, mean, variance, scale, y, has_addend = kept
    rows, gradient, rectified = _rows(x), _rows(dy), _optional(y)
    channels = jax.ShapeDtypeStruct(mean.shape, mean.dtype)
    sums, products = _call(
        "convoy_gradient_sums", (channels, channels), gradient, rows, mean, rectified
    )
    inverse = jax.lax.rsqrt(variance + epsilon)
    count = rows.shape[0]
    of_gradient = scale * inverse
    mean_sum, mean_product = sums / count, products / count
    if average is not None:
        mean_sum, mean_product = average(jnp.stack([mean_sum, mean_product]))
    of_input = -of_gradient * inverse**2 * mean_product
    constant = -of_gradient * mean_sum - of_input * mean
    keeps_passed = rectify and has_addend
    passed = rows if keeps_passed else jax.ShapeDtypeStruct((0,), x.dtype)
    dx, passed = _call(
        "convoy_input_gradient",
        (rows, passed),
        gradient,
        rows,
        of_gradient,
        of_input,
        constant,
        rectified,
    )
    of_addend = (passed.reshape(x.shape) if rectify else dy) if has_addend else None
    nothing = jnp.zeros_like(mean)
    return dx.reshape(x.shape), nothing, nothing, products * inverse, sums, of_addend


normalise.defvjp(_normalise_forward, _normalise_backward)


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1])


def _optional(x: jax.Array | None) -> jax.Array:
    return jnp.zeros((0, 0), jnp.float32) if x is None else _rows(x)


def _call(target: str, results: Any, *arrays: jax.Array, **attributes: Any) -> Any:
    library.load()  # registers the target
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), results)
    call = jax.ffi.ffi_call(target, shapes, vmap_method="sequential")
    return call(*arrays, **attributes, threads=threads.for_each_device())
