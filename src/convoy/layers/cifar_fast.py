"""Parts of the network that learns CIFAR-10 in few epochs.

Reference: Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024.
"""

import math

import keras
import numpy as np
from convoy.types import Json, Tensor
from keras import layers, ops

Shape = tuple[int | None, ...]


@keras.saving.register_keras_serializable(package="convoy")
class Dirac(keras.initializers.Initializer):
    """Initialises the first filters of a convolution as identities, each passing on one channel.

    The other filters are drawn from a uniform distribution within 1 / sqrt(n), with n the number of
    weights of a filter.

    Args:
        seed: seed of the random filters.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self._draw = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform", seed)

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> Tensor:
        """Return the kernel of a convolution, by default in Keras's float type."""
        *size, channels, filters = shape
        identity = np.zeros(shape)
        identity[tuple(length // 2 for length in size)] = np.eye(channels, filters)
        drawn = self._draw(shape, dtype)
        return ops.where(np.arange(filters) < channels, ops.cast(identity, drawn.dtype), drawn)

    def get_config(self) -> Json:
        return {"seed": self.seed}


@keras.saving.register_keras_serializable(package="convoy")
class Offset(layers.Layer):
    """Adds a trainable offset to each channel, which SGD moves `speed` times as fast as others.

    The weight is the offset divided by the square root of `speed`. So its gradient, and the effect
    of a step, are each larger by that root. L2 regularisation shrinks the offset as fast as any
    weight.

    Args:
        speed: factor on the learning rate.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    def __init__(self, speed: float = 64.0, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.speed = speed

    def build(self, shape: Shape) -> None:
        self.beta = self.add_weight(shape=shape[-1:], initializer="zeros", name="beta")

    def call(self, inputs: Tensor) -> Tensor:
        return ops.add(inputs, math.sqrt(self.speed) * self.beta)

    def compute_output_shape(self, shape: Shape) -> Shape:
        return shape

    def get_config(self) -> Json:
        return super().get_config() | {"speed": self.speed}


@keras.saving.register_keras_serializable(package="convoy")
class Whiten(layers.Layer):
    """A convolution that whitens patches of images, with weights that `adapt` computes.

    Half of its filters are the principal components of patches, divided by their standard
    deviations: the outputs are uncorrelated, with variance 1. The other half are the negatives.
    Only the bias is trained.

    Args:
        size: height and width of a patch.
        epsilon: summand of the variances, so that components of mere noise are not amplified.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    def __init__(self, size: int = 2, epsilon: float = 5e-4, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.size = size
        self.epsilon = epsilon

    def build(self, shape: tuple[int, ...]) -> None:
        filters = 2 * self.size**2 * shape[-1]
        self.kernel = self.add_weight(
            shape=(self.size, self.size, shape[-1], filters),
            initializer="glorot_uniform",
            trainable=False,
            name="kernel",
        )
        self.bias = self.add_weight(shape=(filters,), initializer="zeros", name="bias")

    def call(self, images: Tensor) -> Tensor:
        return ops.add(ops.conv(images, self.kernel), self.bias)

    def adapt(self, images: Tensor) -> None:
        """Compute the weights.

        Args:
            images: inputs of this layer; a few thousand small images are enough.
        """
        images = np.asarray(images, np.float32)
        if not self.built:
            self.build(images.shape)
        patches = self._patches(images)
        patches -= patches.mean(0)
        variances, components = np.linalg.eigh(patches.T @ patches / len(patches))
        filters = components / np.sqrt(variances + self.epsilon)
        self.kernel.assign(np.concatenate([filters, -filters], 1).reshape(self.kernel.shape))

    def _patches(self, images: np.ndarray) -> np.ndarray:
        """Return all patches, one per row."""
        height, width = (length - self.size + 1 for length in images.shape[1:3])
        pixels = [
            images[:, top : top + height, left : left + width]
            for top in range(self.size)
            for left in range(self.size)
        ]
        return np.concatenate(pixels, -1).reshape(-1, self.size**2 * images.shape[-1])

    def get_config(self) -> Json:
        return super().get_config() | {"size": self.size, "epsilon": self.epsilon}
