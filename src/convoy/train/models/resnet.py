"""Residual networks for ImageNet, with the layer names of `keras.applications`.

Differences: convolutions have no bias, and the stride of a bottleneck block is in its 3 x 3
convolution ("v1.5"). The first block of every stack has a convolution in its shortcut.
"""

from collections.abc import Sequence

import keras
from keras import layers

EPSILON = 1.001e-5
FILTERS = (64, 128, 256, 512)


def resnet(
    shape: tuple[int, int, int],
    classes: int,
    *,
    blocks: Sequence[int],
    bottleneck: bool,
    name: str,
) -> keras.Model:
    """Return a residual network of four stacks.

    Args:
        shape: height, width and channels of an image.
        classes: number of classes.
        blocks: number of blocks per stack.
        bottleneck: whether a block has three convolutions, the outer ones 1 x 1, instead of two.
        name: name of the model.
    """
    images = keras.Input(shape)
    x = layers.ZeroPadding2D(3, name="conv1_pad")(images)
    x = layers.Conv2D(64, 7, 2, use_bias=False, name="conv1_conv")(x)
    x = _norm("conv1")(x)
    x = layers.ReLU(name="conv1_relu")(x)
    x = layers.ZeroPadding2D(1, name="pool1_pad")(x)
    x = layers.MaxPooling2D(3, 2, name="pool1_pool")(x)
    for stack, (count, filters) in enumerate(zip(blocks, FILTERS, strict=True), start=2):
        for block in range(1, count + 1):
            stride = 2 if stack > 2 and block == 1 else 1
            x = _block(x, filters, stride, bottleneck, block == 1, f"conv{stack}_block{block}")
    x = layers.GlobalAveragePooling2D(name="avg_pool")(x)
    x = layers.Dense(classes, activation="softmax", dtype="float32", name="predictions")(x)
    return keras.Model(images, x, name=name)


def _block(
    x: keras.KerasTensor, filters: int, stride: int, bottleneck: bool, widens: bool, name: str
) -> keras.KerasTensor:
    # Filters, kernel size and stride of each convolution.
    convolutions = [(filters, 3, stride), (filters, 3, 1)]
    if bottleneck:
        convolutions = [(filters, 1, 1), (filters, 3, stride), (4 * filters, 1, 1)]
    *first, (out_filters, kernel, step) = convolutions
    shortcut = x
    if widens:
        shortcut = _convolution(out_filters, 1, stride, f"{name}_0")(x)
        shortcut = _norm(f"{name}_0")(shortcut)
    for part, convolution in enumerate(first, start=1):
        x = _convolution(*convolution, f"{name}_{part}")(x)
        x = _norm(f"{name}_{part}")(x)
        x = layers.ReLU(name=f"{name}_{part}_relu")(x)
    last = f"{name}_{len(convolutions)}"
    x = _convolution(out_filters, kernel, step, last)(x)
    # A bottleneck block without a convolution in its shortcut begins as the identity.
    x = _norm(last, "zeros" if bottleneck and not widens else "ones")(x)
    x = layers.Add(name=f"{name}_add")([shortcut, x])
    return layers.ReLU(name=f"{name}_out")(x)


def _convolution(filters: int, kernel: int, stride: int, name: str) -> layers.Layer:
    return layers.Conv2D(
        filters,
        kernel,
        stride,
        padding="same",
        use_bias=False,
        kernel_initializer=keras.initializers.VarianceScaling(),
        name=f"{name}_conv",
    )


def _norm(name: str, gamma: str = "ones") -> layers.Layer:
    return layers.BatchNormalization(epsilon=EPSILON, gamma_initializer=gamma, name=f"{name}_bn")
