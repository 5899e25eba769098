"""A small network for 28 x 28 images, which reaches 99 % in a minute or two."""

from __future__ import annotations

import keras
from keras import layers


def mnist_cnn(shape: tuple[int, int, int], classes: int) -> keras.Model:
    images = keras.Input(shape)
    x = layers.Conv2D(32, 3, activation="relu", name="conv_0")(images)
    x = layers.MaxPooling2D(name="pool_0")(x)
    x = layers.Conv2D(64, 3, activation="relu", name="conv_1")(x)
    x = layers.MaxPooling2D(name="pool_1")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dropout(0.4, name="dropout")(x)
    x = layers.Dense(classes, activation="softmax", dtype="float32", name="fc_layer")(x)
    return keras.Model(images, x, name="mnist_cnn")
