"""Networks in plain Keras: one definition for Convoy and for every Keras peer."""

from __future__ import annotations

import importlib
from typing import Any

import keras
from benchmarks.peers.workloads import Workload
from keras import layers


def make(workload: Workload) -> keras.Model:
    """Return the network of a workload."""
    if workload.source == "keras.applications":
        application = getattr(keras.applications, workload.network)
        return application(weights=None, input_shape=workload.input_shape, classes=workload.outputs)
    return getattr(
        importlib.import_module(f"benchmarks.peers.{workload.source}"), workload.network
    )()


def compile_model(model: keras.Model, workload: Workload, steps_per_execution: int) -> None:
    """Compile a model with the optimizer and the loss of its workload."""
    if workload.optimizer == "adam":
        optimizer = keras.optimizers.Adam(workload.learning_rate)
    else:
        optimizer = keras.optimizers.SGD(workload.learning_rate, momentum=workload.momentum)
    model.compile(
        optimizer,
        "mse" if workload.regression else "sparse_categorical_crossentropy",
        steps_per_execution=steps_per_execution,
    )


def mnist_cnn() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )


def toy_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(5),
            layers.Conv2D(8, 1, activation="relu"),
            layers.MaxPooling2D(5),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )


def resnet8() -> keras.Model:
    return _cifar_resnet(blocks=1, filters=(16, 32, 64))


def resnet20_wide() -> keras.Model:
    return _cifar_resnet(blocks=3, filters=(64, 128, 256))


def resnet50() -> keras.Model:
    return keras.applications.ResNet50(weights=None)


def efficientnet_b0() -> keras.Model:
    return keras.applications.EfficientNetB0(weights=None)


def mobilenet_v2() -> keras.Model:
    return keras.applications.MobileNetV2(weights=None)


def cosmoflow() -> keras.Model:
    """Convolve with kernels of 2, as the `cosmoflow` of Graphcore's application does."""
    inputs = x = keras.Input((64, 64, 64, 4))
    for filters in (16, 32, 64, 128, 256):
        x = layers.Conv3D(filters, 2, padding="same")(x)
        x = layers.LeakyReLU(0.3)(x)
        x = layers.MaxPooling3D(2)(x)
    x = layers.Flatten()(x)
    for units in (128, 64):
        x = layers.Dense(units)(x)
        x = layers.LeakyReLU(0.3)(x)
        x = layers.Dropout(0.2)(x)
    x = layers.Dense(4, activation="tanh")(x)
    return keras.Model(inputs, layers.Rescaling(1.2)(x))


def _cifar_resnet(blocks: int, filters: tuple[int, int, int]) -> keras.Model:
    """Return a CIFAR ResNet whose shortcuts have no parameters (He et al., option A)."""
    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(_convolve(inputs, filters[0]))
    for stack, width in enumerate(filters):
        for block in range(blocks):
            x = _basic_block(x, width, strides=2 if stack and not block else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def _basic_block(x: Any, filters: int, strides: int) -> Any:
    shortcut = x
    if strides > 1:
        added = filters - x.shape[-1]
        shortcut = keras.ops.pad(x[:, ::2, ::2, :], ((0, 0), (0, 0), (0, 0), (0, added)))
    x = layers.ReLU()(_convolve(x, filters, strides))
    x = _convolve(x, filters)
    return layers.ReLU()(layers.Add()([x, shortcut]))


def _convolve(x: Any, filters: int, strides: int = 1) -> Any:
    x = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization()(x)
