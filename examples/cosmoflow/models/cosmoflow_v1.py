"""The first version of CosmoFlow: the same number of channels in every layer, no padding."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from models.layers import activate, dense_head, pool

LAYERS = 5
KERNEL = 2


def cosmoflow_v1(
    input_shape: Sequence[int],
    target_size: int,
    conv_size: int = 16,
    fc1_size: int = 128,
    fc2_size: int = 64,
    hidden_activation: str = "LeakyReLU",
    pooling_type: str = "MaxPool3D",
    dropout: float = 0.0,
) -> keras.Model:
    """Return the network: 19,476 parameters for 64x64x64x4."""
    if min(input_shape[:3]) < smallest_side():
        raise ValueError(
            f"A side of {min(input_shape[:3])} is too small for {LAYERS} layers. Use "
            f"volumes with sides of {smallest_side()} or more."
        )
    inputs = x = keras.Input(input_shape)
    for _ in range(LAYERS):
        x = keras.layers.Conv3D(conv_size, KERNEL)(x)
        x = pool(activate(x, hidden_activation), pooling_type)
    x = keras.layers.Dropout(dropout)(keras.layers.Flatten()(x))
    x = dense_head(x, target_size, (fc1_size, fc2_size), hidden_activation, dropout)
    return keras.Model(inputs, x, name="cosmoflow_v1")


def smallest_side() -> int:
    side = 1
    for _ in range(LAYERS):
        side = 2 * side + KERNEL - 1
    return side
