"""Random numbers."""

from __future__ import annotations

from typing import Any

import keras


def dropout(
    x: Any,
    rate: float = 0.5,
    noise_shape: Any = None,
    seed: Any = None,
    name: str | None = None,
    **kwargs: Any,
) -> Any:
    """Set values to zero by chance, and scale the others so that the sum stays.

    Raises:
        ValueError: if the rate is not from 0 to below 1.
    """
    del name, kwargs
    if not 0 <= rate < 1:
        raise ValueError(f"rate={rate} is not from 0 to below 1.")
    return keras.random.dropout(x, rate, noise_shape, seed=seed) if rate else x
