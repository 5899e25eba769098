"""Preprocessing layers: they turn what is moved to the device into the input of a network."""

import keras
from convoy.data.augment import normalise_by
from convoy.data.catalog import SYNTHETIC_DEVIATION, SYNTHETIC_MEAN, Normalisation
from convoy.types import Json, Tensor
from keras import layers, ops


@keras.saving.register_keras_serializable(package="convoy")
class Decompress(layers.Layer):
    """Turns bytes into numbers."""

    def call(self, images: Tensor) -> Tensor:
        return ops.cast(images, self.compute_dtype)

    def compute_output_spec(self, images: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor(images.shape, self.compute_dtype)


@keras.saving.register_keras_serializable(package="convoy")
class Preprocess(layers.Layer):
    """Flips images at random in training, then normalises them.

    Args:
        normalisation: normalisation, as in `convoy.data.DatasetInfo`.
        flip: whether to flip at random.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    def __init__(self, normalisation: Normalisation, flip: bool = False, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.normalisation = normalisation
        self.flip = flip
        self.seed_generator = keras.random.SeedGenerator() if flip else None

    def call(self, images: Tensor, training: bool | None = None) -> Tensor:
        if self.flip and training:
            shape = (ops.shape(images)[0], 1, 1, 1)
            draws = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
            images = ops.where(draws < 0.5, ops.flip(images, 2), images)
        # Sums over pixels overflow float16.
        return ops.cast(
            normalise_by(ops, ops.cast(images, "float32"), self.normalisation), self.compute_dtype
        )

    def compute_output_spec(
        self, images: Tensor, training: bool | None = None
    ) -> keras.KerasTensor:
        del training
        return keras.KerasTensor(images.shape, self.compute_dtype)

    def get_config(self) -> Json:
        return super().get_config() | {"normalisation": self.normalisation, "flip": self.flip}


@keras.saving.register_keras_serializable(package="convoy")
class SyntheticImages(layers.Layer):
    """Generates random images on the device, one for each number of its input.

    Args:
        shape: shape of an image.
        as_bytes: whether values are integers from 0 to 255.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    def __init__(self, shape: tuple[int, ...], as_bytes: bool = False, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.shape = tuple(shape)
        self.as_bytes = as_bytes
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, numbers: Tensor) -> Tensor:
        images = keras.random.truncated_normal(
            (ops.shape(numbers)[0], *self.shape),
            SYNTHETIC_MEAN,
            SYNTHETIC_DEVIATION,
            seed=self.seed_generator,
        )
        images = ops.floor(ops.clip(images, 0, 255)) if self.as_bytes else images
        return ops.cast(images, self.compute_dtype)

    def compute_output_spec(self, numbers: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor((numbers.shape[0], *self.shape), self.compute_dtype)

    def get_config(self) -> Json:
        return super().get_config() | {"shape": self.shape, "as_bytes": self.as_bytes}
