"""Random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np


def dropout(
    x: Any,
    rate: float = 0.5,
    noise_shape: Sequence[int] | None = None,
    seed: Any = None,
    name: str | None = None,
    **kwargs: Any,
) -> Any:
    """Set values to zero by chance, and scale the others so that the sum stays.

    Args:
        x: an array.
        rate: the chance, from 0 to below 1.
        noise_shape: of the draws: along an axis of 1, all values stay or go together.
        seed: two int32 numbers; or what `keras.random.dropout` takes.
        name: has no effect.
        kwargs: have no effect.

    Raises:
        ValueError: if the rate or the shape of the draws is none.
    """
    del name, kwargs
    if not 0 <= rate < 1:
        raise ValueError(f"rate={rate} is not from 0 to below 1.")
    shape = tuple(np.shape(x))
    draws = shape if noise_shape is None else tuple(noise_shape)
    if len(draws) != len(shape) or any(n not in (1, m) for n, m in zip(draws, shape, strict=True)):
        raise ValueError(
            f"noise_shape={list(draws)} does not fit {list(shape)}. Pass the same, or 1, for each "
            "axis."
        )
    if not rate:
        return x
    if np.shape(seed) != (2,):
        return keras.random.dropout(x, rate, noise_shape, seed=seed)
    key = jax.random.wrap_key_data(jnp.asarray(seed).astype("uint32"), impl="threefry2x32")
    stays = jax.random.bernoulli(key, 1 - rate, draws)
    return jnp.where(stays, x / (1 - rate), 0).astype(jnp.result_type(x))
