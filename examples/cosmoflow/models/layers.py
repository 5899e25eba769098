"""Layers that the networks share: activation, pooling, dense head."""

from __future__ import annotations

import keras

Tensor = keras.KerasTensor


def activate(x: Tensor, name: str) -> Tensor:
    """Apply an activation layer such as `LeakyReLU`, or a function such as `relu`, by name."""
    layer = getattr(keras.layers, name, None)
    return keras.layers.Activation(name)(x) if layer is None else layer()(x)


def pool(x: Tensor, name: str) -> Tensor:
    """Halve all sides with a pooling layer such as `MaxPool3D`."""
    layer = getattr(keras.layers, name, None)
    if layer is None or not name.endswith("3D"):
        raise ValueError(
            f"model.pooling_type {name!r} is not a pooling layer. Set for example MaxPool3D."
        )
    return layer(pool_size=2)(x)


def dense_head(
    x: Tensor, target_size: int, sizes: tuple[int, ...], activation: str, dropout: float
) -> Tensor:
    """Append dense layers with dropout, and the output layer."""
    for size in sizes:
        x = activate(keras.layers.Dense(size)(x), activation)
        x = keras.layers.Dropout(dropout)(x)
    return scaled_targets(x, target_size)


def scaled_targets(x: Tensor, target_size: int) -> Tensor:
    """Append the output layer, scaled so that tanh reaches -1 and 1 before it saturates."""
    # The output is float32 in every precision.
    x = keras.layers.Dense(target_size, activation="tanh", dtype="float32")(x)
    return keras.layers.Rescaling(1.2, dtype="float32")(x)
