"""What the networks have in common."""

from __future__ import annotations

import keras

Tensor = keras.KerasTensor


def activate(x: Tensor, name: str) -> Tensor:
    """Apply a layer such as `LeakyReLU`, or a function such as `relu`, by its name."""
    layer = getattr(keras.layers, name, None)
    return keras.layers.Activation(name)(x) if layer is None else layer()(x)


def pool(x: Tensor, name: str) -> Tensor:
    """Halve all sides by a layer such as `MaxPool3D`."""
    layer = getattr(keras.layers, name, None)
    if layer is None or not name.endswith("3D"):
        raise ValueError(f"model.pooling_type {name!r} is not one such as MaxPool3D.")
    return layer(pool_size=2)(x)


def dense_head(
    x: Tensor, target_size: int, sizes: tuple[int, ...], activation: str, dropout: float
) -> Tensor:
    """Add dense layers with dropout, and then the targets."""
    for size in sizes:
        x = activate(keras.layers.Dense(size)(x), activation)
        x = keras.layers.Dropout(dropout)(x)
    return scaled_targets(x, target_size)


def scaled_targets(x: Tensor, target_size: int) -> Tensor:
    """Return targets that reach a little beyond -1 and 1, where tanh would be flat."""
    # In 32 bits whatever the rest is in: they are the result.
    x = keras.layers.Dense(target_size, activation="tanh", dtype="float32")(x)
    return keras.layers.Rescaling(1.2, dtype="float32")(x)
