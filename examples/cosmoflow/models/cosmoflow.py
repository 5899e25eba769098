"""CosmoFlow: convolutions with pooling that doubles the channels; and MLPerf's larger network."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import keras

from models.layers import activate, dense_head, pool


def cosmoflow(
    input_shape: Sequence[int],
    target_size: int,
    conv_size: int = 16,
    kernel_size: int = 2,
    n_conv_layers: int = 5,
    fc1_size: int = 128,
    fc2_size: int = 64,
    hidden_activation: str = "LeakyReLU",
    pooling_type: str = "MaxPool3D",
    dropout: float = 0.0,
) -> keras.Model:
    """Return the network of Graphcore's example: 619,956 parameters for 64x64x64x4."""
    side = min(input_shape[:3])
    if side < 2**n_conv_layers:
        raise ValueError(
            f"A side of {side} cannot be halved by {n_conv_layers} layers. Take larger volumes, "
            f"or set model.n_conv_layers to {side.bit_length() - 1} or fewer."
        )
    inputs = x = keras.Input(input_shape)
    for number in range(n_conv_layers):
        x = keras.layers.Conv3D(conv_size * 2**number, kernel_size, padding="same")(x)
        x = pool(activate(x, hidden_activation), pooling_type)
    x = keras.layers.Flatten()(x)
    x = dense_head(x, target_size, (fc1_size, fc2_size), hidden_activation, dropout)
    return keras.Model(inputs, x, name="cosmoflow")


# The reference network of MLPerf HPC: 32 to 512 channels, kernels of size 3.
mlperf = functools.partial(cosmoflow, conv_size=32, kernel_size=3, dropout=0.5)
