"""Batch normalisation in training on CPUs, with the addition and the ReLU that follow it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from convoy.cpu import kernel_dtypes, library, lowering, threads

Average = Callable[[jax.Array], jax.Array]
"""The mean of a value over the devices that share statistics."""

# Each direction takes two passes over the data. XLA's own form takes several more, and the ReLU and
# the addition of a residual network another three.
#
#     forward     moments         x          ->  mean, variance
#                 affine          x, addend  ->  y = relu(x * factor + shift + addend)
#     backward    gradient sums   dy, x, y   ->  sum of dy, sum of dy * (x - mean)
#                 input gradient  dy, x, y   ->  dx, and dy where the ReLU let it pass
#
# Between the two passes of a direction there are only vectors with a value for each channel. These
# are in float32, whatever the type of the arrays: the kernels compute in float32 and round once.


class Operands(NamedTuple):
    """The operands of a batch normalisation.

    Attributes:
        x: input, channels last, in float32, bfloat16 or float16.
        mean: mean of `x` by channel, in float32.
        variance: variance of `x` by channel, in float32. The gradient for `x` includes the paths
            through mean and variance, so these two get none.
        scale: factor by channel, in float32.
        offset: summand by channel, in float32.
        addend: array that is added to the result, in the type of `x`, or `None`.
    """

    x: jax.Array
    mean: jax.Array
    variance: jax.Array
    scale: jax.Array
    offset: jax.Array
    addend: jax.Array | None = None


# Operands, without the addend; the result, if there is a ReLU; whether there is an addend.
Residuals = tuple[Operands, jax.Array | None, bool]


@jax.custom_vjp
def moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mean and variance over all axes but the last."""
    lowering.count(kernel_dtypes.BATCH_NORMALIZATION)
    channels = jax.ShapeDtypeStruct(x.shape[-1:], jnp.float32)
    return _call("convoy_moments", (channels, channels), _rows(x))


def _moments_forward(
    x: jax.Array,
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    mean, variance = moments(x)
    return (mean, variance), (x, mean)


def _moments_backward(
    residuals: tuple[jax.Array, jax.Array], gradients: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array]:
    x, mean = residuals
    d_mean, d_variance = gradients
    count = x.size // x.shape[-1]
    per_channel = partial(jnp.expand_dims, axis=tuple(range(x.ndim - 1)))
    deviation = x.astype(mean.dtype) - per_channel(mean)
    d_x = per_channel(d_mean) + 2 * per_channel(d_variance) * deviation
    return ((d_x / count).astype(x.dtype),)


moments.defvjp(_moments_forward, _moments_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def normalize(
    operands: Operands, epsilon: float, relu: bool, average: Average | None = None
) -> jax.Array:
    """Return `(x - mean) / sqrt(variance + epsilon) * scale + offset`, with addition and ReLU.

    Args:
        operands: input, statistics and parameters.
        epsilon: summand of the variance.
        relu: whether a ReLU is applied at the end.
        average: mean over the devices whose inputs the statistics are computed from; `None` if that
            is one device. Only the gradient uses it.
    """
    del average
    x, mean, variance, scale, offset, addend = operands
    factor = jax.lax.rsqrt(variance + epsilon) * scale
    shift = offset - mean * factor
    rows = _rows(x)
    # `rectify` is the kernel's name for the ReLU.
    y = _call("convoy_affine", rows, rows, factor, shift, _optional(addend, x), rectify=relu)
    return y.reshape(x.shape)


def _normalize_forward(
    operands: Operands, epsilon: float, relu: bool, average: Average | None
) -> tuple[jax.Array, Residuals]:
    y = normalize(operands, epsilon, relu, average)
    # The ReLU's gradient depends on where its output, y, is positive. The next layer keeps y
    # anyway. The addend is not needed.
    kept = operands._replace(addend=None)
    return y, (kept, y if relu else None, operands.addend is not None)


def _normalize_backward(
    epsilon: float, relu: bool, average: Average | None, residuals: Residuals, dy: jax.Array
) -> tuple[Operands]:
    # With g = dy where the ReLU let it pass, r = 1 / sqrt(variance + epsilon), and means taken over
    # all axes but the channels', the usual gradient of batch normalisation is
    #
    #     dx = scale * r * (g - mean(g) - (x - mean) * r**2 * mean(g * (x - mean)))
    #
    # The two means take one pass. The second pass then computes a * g + b * x + c, with a, b and c
    # by channel.
    (x, mean, variance, scale, _, _), y, has_addend = residuals
    rows, gradient, output = _rows(x), _rows(dy), _optional(y, x)
    channels = jax.ShapeDtypeStruct(mean.shape, mean.dtype)
    sums, products = _call(
        "convoy_gradient_sums", (channels, channels), gradient, rows, mean, output
    )
    inverse = jax.lax.rsqrt(variance + epsilon)
    count = rows.shape[0]
    mean_sum, mean_product = sums / count, products / count
    if average is not None:
        mean_sum, mean_product = average(jnp.stack([mean_sum, mean_product]))
    a = scale * inverse
    b = -a * inverse**2 * mean_product
    c = -a * mean_sum - b * mean
    # The gradient of the addend is g, which is dy itself without a ReLU.
    writes_g = relu and has_addend
    g = rows if writes_g else jax.ShapeDtypeStruct((0,), x.dtype)
    dx, g = _call("convoy_input_gradient", (rows, g), gradient, rows, a, b, c, output)
    d_addend = (g.reshape(x.shape) if relu else dy) if has_addend else None
    zeros = jnp.zeros_like(mean)
    return (Operands(dx.reshape(x.shape), zeros, zeros, products * inverse, sums, d_addend),)


normalize.defvjp(_normalize_forward, _normalize_backward)


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1])


def _optional(x: jax.Array | None, like: jax.Array) -> jax.Array:
    """Return the rows of an array; for `None` an empty array, which the kernels do not read."""
    return jnp.zeros((0, 0), like.dtype) if x is None else _rows(x)


def _call(target: str, results: Any, *arrays: jax.Array, **attributes: bool) -> Any:
    library.load()  # registers the target
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), results)
    call = jax.ffi.ffi_call(target, shapes, vmap_method="sequential")
    return call(*arrays, **attributes, threads=threads.per_device())
