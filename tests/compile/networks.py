"""Small networks and runs of them, for tests that compile."""

from __future__ import annotations

import convoy
import keras
import numpy as np
from keras import layers

SIDE, CLASSES = 8, 4


def network(width: int = 8, side: int = SIDE) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((side, side, 3)),
            layers.Conv2D(width, 3, padding="same", name="convolution"),
            layers.BatchNormalization(name="normalization"),
            layers.ReLU(name="activation"),
            layers.GlobalAveragePooling2D(name="pooling"),
            layers.Dense(CLASSES, dtype="float32", name="classifier"),
        ]
    )


def deep(side: int = SIDE, width: int = 32, depth: int = 8) -> keras.Model:
    """Return a network with many activations."""
    x = inputs = keras.Input((side, side, 3))
    for number in range(depth):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False, name=f"conv{number}")(x)
        x = layers.Activation("silu", name=f"silu{number}")(x)
    x = layers.GlobalAveragePooling2D(name="pooling")(x)
    return keras.Model(inputs, layers.Dense(CLASSES, dtype="float32", name="classifier")(x))


def wide(width: int = 1024, depth: int = 4) -> keras.Model:
    """Return a network with many weights."""
    x = inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.Dense(width, name="first")(layers.GlobalAveragePooling2D()(x))
    for number in range(depth):
        x = layers.Dense(width, "tanh", use_bias=False, name=f"dense{number}")(x)
    return keras.Model(inputs, layers.Dense(CLASSES, dtype="float32", name="classifier")(x))


def data(samples: int, side: int = SIDE) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((samples, side, side, 3), np.float32), np.zeros(samples, np.int32)


def compiled_model(strategy: convoy.Strategy, make=network) -> keras.Model:
    with strategy.scope():
        model = make()
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=4,
        )
    return model
