"""The network, in one piece and in two stages."""

from __future__ import annotations

import contextlib

import keras
from convoy import ipu


def model_fn(*, pipelining: bool = False) -> tuple:
    """Return inputs and outputs."""
    stage = ipu.keras.PipelineStage if pipelining else lambda _: contextlib.nullcontext()
    inputs = keras.Input((28, 28, 1))
    with stage(0):
        x = keras.layers.Conv2D(32, 3, activation="relu")(inputs)
        x = keras.layers.MaxPooling2D(2)(x)
        x = keras.layers.Conv2D(64, 3, activation="relu")(x)
    with stage(1):
        x = keras.layers.MaxPooling2D(2)(x)
        x = keras.layers.Flatten()(x)
        x = keras.layers.Dropout(0.5)(x)
        x = keras.layers.Dense(10, activation="softmax")(x)
    return inputs, x
