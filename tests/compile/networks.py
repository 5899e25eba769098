"""A small network and runs of it, for tests that compile."""

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


def data(samples: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((samples, SIDE, SIDE, 3), np.float32), np.zeros(samples, np.int32)


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
