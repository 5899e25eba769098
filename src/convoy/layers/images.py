"""The layers that turn what is moved to the device into what the network takes."""

from __future__ import annotations

from typing import Any

import keras
from convoy.data.catalog import (
    CHANNELS,
    SYNTHETIC_DEVIATION,
    SYNTHETIC_MEAN,
    Normalisation,
)
from keras import layers, ops


@keras.saving.register_keras_serializable(package="convoy")
class Decompress(layers.Layer):
    """Turns bytes into numbers."""

    def call(self, images: Any) -> Any:
        return ops.cast(images, self.compute_dtype)

    def compute_output_spec(self, images: Any) -> keras.KerasTensor:
        return keras.KerasTensor(images.shape, self.compute_dtype)


@keras.saving.register_keras_serializable(package="convoy")
class Preprocess(layers.Layer):
    """Mirrors images by chance while training, then normalises them.

    Args:
        normalisation: as in `convoy.data.DatasetInfo`.
        flip: whether to mirror.
        **kwargs: those of a layer.
    """

    def __init__(self, normalisation: Normalisation, flip: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.normalisation = normalisation
        self.flip = flip
        self.seed_generator = keras.random.SeedGenerator() if flip else None

    def call(self, images: Any, training: bool | None = None) -> Any:
        if self.flip and training:
            shape = (ops.shape(images)[0], 1, 1, 1)
            chance = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
            images = ops.where(chance < 0.5, ops.flip(images, 2), images)
        # Sums over pixels overflow float16.
        return ops.cast(
            normalise(ops.cast(images, "float32"), self.normalisation), self.compute_dtype
        )

    def compute_output_spec(self, images: Any, training: bool | None = None) -> keras.KerasTensor:
        del training
        return keras.KerasTensor(images.shape, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"normalisation": self.normalisation, "flip": self.flip}


def normalise(images: Any, normalisation: Normalisation) -> Any:
    """Normalise images from 0 to 255."""
    if normalisation == "scale":
        return images / 255
    if normalisation in CHANNELS:
        mean, deviation = map(ops.array, CHANNELS[normalisation])
        return ops.divide(ops.subtract(images / 255, mean), deviation)
    mean, variance = ops.moments(images, axes=(1, 2, 3), keepdims=True)
    return (images - mean) / ops.where(variance == 0, 1.0, ops.sqrt(variance))


@keras.saving.register_keras_serializable(package="convoy")
class SyntheticImages(layers.Layer):
    """Makes random images on the device, one for each number that comes in.

    Args:
        shape: of an image.
        as_bytes: whether to cut values to whole numbers from 0 to 255.
        **kwargs: those of a layer.
    """

    def __init__(self, shape: tuple[int, ...], as_bytes: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shape = tuple(shape)
        self.as_bytes = as_bytes
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, numbers: Any) -> Any:
        images = keras.random.truncated_normal(
            (ops.shape(numbers)[0], *self.shape),
            SYNTHETIC_MEAN,
            SYNTHETIC_DEVIATION,
            seed=self.seed_generator,
        )
        images = ops.floor(ops.clip(images, 0, 255)) if self.as_bytes else images
        return ops.cast(images, self.compute_dtype)

    def compute_output_spec(self, numbers: Any) -> keras.KerasTensor:
        return keras.KerasTensor((numbers.shape[0], *self.shape), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"shape": self.shape, "as_bytes": self.as_bytes}
