"""Small networks: one for MNIST, and one for trying things out."""

from __future__ import annotations

import keras
from keras import layers

EPSILON = 1.001e-5


def mnist_cnn(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return a network for 28 x 28 images, which reaches 99 % in one or two minutes."""
    images = keras.Input(shape)
    x = layers.Conv2D(32, 3, activation="relu", name="conv_0")(images)
    x = layers.MaxPooling2D(name="pool_0")(x)
    x = layers.Conv2D(64, 3, activation="relu", name="conv_1")(x)
    x = layers.MaxPooling2D(name="pool_1")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dropout(0.4, name="dropout")(x)
    x = layers.Dense(classes, activation="softmax", dtype="float32", name="fc_layer")(x)
    return keras.Model(images, x, name="mnist_cnn")


def toy_model(shape: tuple[int, int, int], classes: int, *, normalise: bool = False) -> keras.Model:
    """Return two convolutions and a dense layer; with `normalise`, batch norms after the pools."""
    images = keras.Input(shape)
    x = layers.Conv2D(4, 3, activation="relu", name="conv2d_0")(images)
    x = layers.MaxPooling2D(5, 5)(x)
    if normalise:
        x = layers.BatchNormalization(epsilon=EPSILON, name="bn_0")(x)
    x = layers.Conv2D(8, 1, activation="relu", name="conv2d_1")(x)
    x = layers.MaxPooling2D(5, 5)(x)
    if normalise:
        x = layers.BatchNormalization(epsilon=EPSILON, name="bn_1")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(classes, activation="softmax", dtype="float32")(x)
    return keras.Model(images, x, name="toy_model_bn" if normalise else "toy_model")
