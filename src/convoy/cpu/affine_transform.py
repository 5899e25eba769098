"""Rotation, zoom, translation and shear of images, as Keras's augmentation layers use them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Keras treats the channel as a third coordinate of every value: each value of the result is a sum
# over the 8 corners of a cube, and each corner a gather of single numbers. The channel does not
# change, so the 4 corners of a square are enough, and all channels of a pixel are read at once:
#
#     Keras     H x W x C values, 8 gathers of a number each
#     here      H x W pixels,     4 gathers of C numbers each
#
# On a CPU that takes a twentieth of the time.


def _mirror(index: jax.Array, size: int) -> jax.Array:
    """Repeat an axis forwards and backwards; its ends occur once: `a b c b a b c`."""
    index = index % max(1, 2 * size - 2)
    return jnp.minimum(index, 2 * size - 2 - index)


def _reflect(index: jax.Array, size: int) -> jax.Array:
    """Repeat an axis forwards and backwards; its ends occur twice: `a b c c b a a b c`."""
    index = index % (2 * size)
    return jnp.minimum(index, 2 * size - 1 - index)


# For each fill mode, a function that maps an index, which may be outside of the axis, to a pixel.
FILL_MODES: dict[str, Callable[[jax.Array, int], jax.Array]] = {
    "constant": lambda index, size: jnp.clip(index, 0, size - 1),
    "nearest": lambda index, size: jnp.clip(index, 0, size - 1),
    "wrap": lambda index, size: index % size,
    "mirror": _mirror,
    "reflect": _reflect,
}


def affine_transform(
    original: Callable[..., jax.Array],
    images: jax.Array,
    transform: jax.Array,
    interpolation: str = "bilinear",
    fill_mode: str = "constant",
    fill_value: float = 0,
    data_format: str | None = None,
) -> jax.Array:
    """Compute Keras's operation of this name, in less time in the most common case.

    Args:
        original: Keras's own function, for all other cases.
        images: images, in the order of `data_format`.
        transform: eight numbers for each image.
        interpolation: `"bilinear"` or `"nearest"`; only the first is faster here. The nearest pixel
            depends on how coordinates are rounded, so Keras's function computes it.
        fill_mode: the rule for pixels outside of an image.
        fill_value: the value outside of an image for the mode `"constant"`.
        data_format: order of the axes; only `"channels_last"` is faster here.
    """

    def as_keras(images: jax.Array, transform: jax.Array) -> jax.Array:
        return original(images, transform, interpolation, fill_mode, fill_value, data_format)

    if (
        interpolation != "bilinear"
        or fill_mode not in FILL_MODES
        or data_format != "channels_last"
        or not (_is_float32(images, 4) and _is_float32(transform, 2))
        or images.shape[0] != transform.shape[0]
        or min(images.shape) == 0
    ):
        return as_keras(images, transform)

    def fast(images: jax.Array, transform: jax.Array) -> jax.Array:
        return _bilinear(images, transform, fill_mode, fill_value)

    # With the last two numbers, which Keras's layers set to zero, its coordinates depend on the
    # channel.
    is_affine = jnp.all(transform[:, 6:] == 0)
    return jax.lax.cond(is_affine, fast, as_keras, images, transform)


def _bilinear(
    images: jax.Array, transform: jax.Array, fill_mode: str, fill_value: float
) -> jax.Array:
    count, height, width, channels = images.shape
    row = jnp.arange(height, dtype=jnp.float32)[None, :, None]
    column = jnp.arange(width, dtype=jnp.float32)[None, None, :]
    x0, x1, x2, y0, y1, y2 = (transform[:, n, None, None] for n in range(6))
    rows = _neighbours(row * y1 + column * y0 + y2, height, fill_mode)
    columns = _neighbours(row * x1 + column * x0 + x2, width, fill_mode)

    pixels = images.reshape(count * height * width, channels)
    first = (jnp.arange(count, dtype=jnp.int32) * (height * width))[:, None, None]
    result = jnp.zeros(())
    for y, row_weight, row_inside in rows:
        for x, column_weight, column_inside in columns:
            value = pixels.at[first + y * width + x].get(mode="promise_in_bounds")
            if fill_mode == "constant":
                value = jnp.where((row_inside & column_inside)[..., None], value, fill_value)
            result = result + (row_weight * column_weight)[..., None] * value
    return result


def _neighbours(
    coordinate: jax.Array, size: int, fill_mode: str
) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
    """Return the index, the weight and the validity of the pixels on both sides of a coordinate."""
    below = jnp.floor(coordinate)
    upper_weight = coordinate - below
    index = below.astype(jnp.int32)
    return [
        (FILL_MODES[fill_mode](at, size), weight, (at >= 0) & (at < size))
        for at, weight in ((index, 1 - upper_weight), (index + 1, upper_weight))
    ]


def _is_float32(value: Any, rank: int) -> bool:
    return isinstance(value, jax.Array) and value.dtype == jnp.float32 and value.ndim == rank
