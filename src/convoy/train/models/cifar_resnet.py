"""Residual networks for small images, with shortcuts without weights.

Reference: He et al., "Deep Residual Learning for Image Recognition", 2015, section 4.2, option A.
"""

from functools import partial

import keras
from convoy.layers import Subsample
from keras import layers

EPSILON = 1.001e-5
FILTERS = (16, 32, 64)
_convolution = partial(
    layers.Conv2D, kernel_size=3, padding="same", use_bias=False, kernel_initializer="he_normal"
)
_norm = partial(layers.BatchNormalization, epsilon=EPSILON)


def cifar_resnet(shape: tuple[int, int, int], classes: int, *, blocks: int) -> keras.Model:
    """Return a residual network of three stacks.

    Args:
        shape: height, width and channels of an image.
        classes: number of classes.
        blocks: number of blocks per stack; the network has `6 * blocks + 2` layers with weights.
    """
    images = keras.Input(shape)
    x = _convolution(16, name="conv1")(images)
    x = _norm(name="conv1_bn")(x)
    x = layers.ReLU(name="conv1_relu")(x)
    for stack, filters in enumerate(FILTERS):
        for block in range(1, blocks + 1):
            stride = 2 if stack and block == 1 else 1
            x = _block(x, filters, stride, f"conv{stack + 2}_block{block}")
    x = layers.GlobalAveragePooling2D(name="avg_pool")(x)
    x = layers.Dense(classes, activation="softmax", dtype="float32", name="fc_layer")(x)
    return keras.Model(images, x, name=f"cifar_resnet{6 * blocks + 2}")


def _block(x: keras.KerasTensor, filters: int, stride: int, name: str) -> keras.KerasTensor:
    shortcut = Subsample(name=f"{name}_shortcut")(x) if stride > 1 else x
    kind = "conv_ds" if stride > 1 else "conv"
    x = _convolution(filters, strides=stride, name=f"{name}_layer1_{kind}")(x)
    x = _norm(name=f"{name}_layer1_bn")(x)
    x = layers.ReLU(name=f"{name}_layer1_relu")(x)
    x = _convolution(filters, name=f"{name}_layer2_conv")(x)
    x = _norm(name=f"{name}_layer2_bn")(x)
    x = layers.Add(name=f"{name}_add")([shortcut, x])
    return layers.ReLU(name=f"{name}_post_addition_relu")(x)
