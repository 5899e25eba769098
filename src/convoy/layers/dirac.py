"""Convolutions that pass on what they are given, before they have learnt anything."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="convoy")
class Dirac(keras.initializers.Initializer):
    """Has the first filters of a convolution pass on one channel each; the rest are drawn.

    These are uniform within 1 / sqrt(n), with n the weights of a filter.

    Args:
        seed: of what is drawn.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self._draw = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform", seed)

    def __call__(self, shape: tuple, dtype: Any = None) -> Any:
        """Return the kernel of a convolution, by default of the type of Keras's floats."""
        *size, channels, filters = shape
        passing = np.zeros(shape)
        passing[tuple(length // 2 for length in size)] = np.eye(channels, filters)
        drawn = self._draw(shape, dtype)
        return ops.where(np.arange(filters) < channels, ops.cast(passing, drawn.dtype), drawn)

    def get_config(self) -> dict[str, Any]:
        return {"seed": self.seed}
