"""Residual networks with bottlenecks (He et al., 2015), in three dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from models.layers import Tensor, scaled_targets

CHANNELS = -1
EXPANSION = 4
EPSILON = 1.001e-5


def resnet(
    input_shape: Sequence[int],
    target_size: int,
    dropout: float = 0.0,
    filters: Sequence[int] = (32, 64, 128, 256),
    blocks: Sequence[int] = (2, 2, 2, 2),
) -> keras.Model:
    """Return a residual network.

    Args:
        input_shape: shape of a volume, with its channels.
        target_size: number of targets.
        dropout: dropout rate before the output layer.
        filters: filters of each stack.
        blocks: number of blocks in each stack.
    """
    if len(filters) != len(blocks):
        raise ValueError(
            f"model.filters {filters} and model.blocks {blocks} differ in length. Set one number "
            "of blocks for each number of filters."
        )
    inputs = keras.Input(input_shape)
    x = keras.layers.ZeroPadding3D(3)(inputs)
    x = _activated(keras.layers.Conv3D(64, 7, strides=2)(x))
    x = keras.layers.MaxPooling3D(3, strides=2)(keras.layers.ZeroPadding3D(1)(x))
    for stack, (width, count) in enumerate(zip(filters, blocks, strict=True)):
        for block in range(count):
            first = block == 0
            x = _block(x, width, strides=2 if first and stack else 1, widens=first)
    x = keras.layers.GlobalAveragePooling3D()(x)
    x = keras.layers.Dropout(dropout)(x)
    return keras.Model(inputs, scaled_targets(x, target_size), name="resnet")


def resnet50(input_shape: Sequence[int], target_size: int, dropout: float = 0.0) -> keras.Model:
    """Return a ResNet-50: stacks of 3, 4, 6 and 3 blocks."""
    return resnet(input_shape, target_size, dropout, (64, 128, 256, 512), (3, 4, 6, 3))


def mini_resnet(input_shape: Sequence[int], target_size: int, dropout: float = 0.0) -> keras.Model:
    """Return a network of three small stacks."""
    return resnet(input_shape, target_size, dropout, (32, 32, 32), (2, 2, 2))


def _block(x: Tensor, filters: int, strides: int, *, widens: bool) -> Tensor:
    shortcut = x
    if widens:
        shortcut = keras.layers.Conv3D(EXPANSION * filters, 1, strides=strides)(x)
        shortcut = _normalised(shortcut)
    x = _activated(keras.layers.Conv3D(filters, 1, strides=strides)(x))
    x = _activated(keras.layers.Conv3D(filters, 3, padding="same")(x))
    x = _normalised(keras.layers.Conv3D(EXPANSION * filters, 1)(x))
    return keras.layers.ReLU()(keras.layers.Add()([shortcut, x]))


def _activated(x: Tensor) -> Tensor:
    return keras.layers.ReLU()(_normalised(x))


def _normalised(x: Tensor) -> Tensor:
    return keras.layers.BatchNormalization(axis=CHANNELS, epsilon=EPSILON)(x)
