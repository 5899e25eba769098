"""An offset that learns at a rate of its own, with one optimizer for all."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import layers, ops


@keras.saving.register_keras_serializable(package="convoy")
class Offset(layers.Layer):
    """Adds an offset to each channel, which SGD moves `speed` times as fast as other weights.

    The weight is what is added, divided by the root of `speed`: its gradient is that root times as
    large, and so is what a step of it does. L2 regularisation draws the offset to zero as fast as
    any weight.

    Args:
        speed: how many times as fast.
        **kwargs: those of a layer.
    """

    def __init__(self, speed: float = 64.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.speed = speed

    def build(self, shape: tuple) -> None:
        self.beta = self.add_weight(shape=shape[-1:], initializer="zeros", name="beta")

    def call(self, inputs: Any) -> Any:
        return ops.add(inputs, math.sqrt(self.speed) * self.beta)

    def compute_output_shape(self, shape: tuple) -> tuple:
        return shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"speed": self.speed}
