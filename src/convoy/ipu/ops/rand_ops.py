"""Random operations."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy.types import PyTree


def dropout(
    x: jax.Array,
    rate: float = 0.5,
    noise_shape: Sequence[int] | None = None,
    seed: PyTree = None,
    name: str | None = None,
    **kwargs: object,
) -> jax.Array:
    """Set random elements to zero, and scale the others so that the expected sum is kept.

    Args:
        x: an array.
        rate: probability of zero, from 0 to below 1.
        noise_shape: shape of the random mask; it is broadcast along axes of size 1.
        seed: two int32 numbers, or a seed of `keras.random.dropout`.
        name: no effect.
        kwargs: no effect.

    Raises:
        ValueError: if the rate is out of range, or the shape of the mask does not fit.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate={rate} is not a probability. Pass 0 or more, and less than 1.")
    shape = tuple(np.shape(x))
    mask = shape if noise_shape is None else tuple(noise_shape)
    if len(mask) != len(shape) or any(n not in (1, m) for n, m in zip(mask, shape, strict=True)):
        raise ValueError(
            f"noise_shape={list(mask)} does not fit the shape {list(shape)}. For each axis, pass "
            "the same size or 1."
        )
    if not rate:
        return x
    if np.shape(seed) != (2,):
        return keras.random.dropout(x, rate, noise_shape, seed=seed)
    key = jax.random.wrap_key_data(jnp.asarray(seed).astype("uint32"), impl="threefry2x32")
    stays = jax.random.bernoulli(key, 1 - rate, mask)
    return jnp.where(stays, x / (1 - rate), 0).astype(jnp.result_type(x))
