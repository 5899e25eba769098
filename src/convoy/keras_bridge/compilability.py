"""Layers and settings that keep a model from being compiled.

Keras marks layers that cannot be compiled by `supports_jit`. Its image augmentation layers carry
that mark because of TensorFlow; JAX compiles them, with the same random draws. Two cannot be
compiled: `AugMix` chooses operations by Python's own generator, and a program would repeat the
choice that was made while it was traced; `RandomElasticTransform` has a kernel of random size.
"""

from __future__ import annotations

from typing import Any

import jax
from keras import Model
from keras.src.layers.preprocessing.image_preprocessing.aug_mix import AugMix
from keras.src.layers.preprocessing.image_preprocessing.base_image_preprocessing_layer import (
    BaseImagePreprocessingLayer,
)
from keras.src.layers.preprocessing.image_preprocessing.random_crop import RandomCrop
from keras.src.layers.preprocessing.image_preprocessing.random_elastic_transform import (
    RandomElasticTransform,
)

_DECIDE_IN_PYTHON = (AugMix, RandomElasticTransform)
_stock_crop = RandomCrop.transform_images


def uncompilable_layers(model: Model) -> list[str]:
    """Return the names and classes of the layers that cannot be part of a compiled program."""
    return [
        f"{layer.name} ({type(layer).__name__})"
        for layer in model._flatten_layers()
        if isinstance(layer, _DECIDE_IN_PYTHON)
        or not (layer.supports_jit or isinstance(layer, BaseImagePreprocessingLayer))
    ]


def turns_compilation_off(model: Model) -> bool:
    """Return whether `compile` received `jit_compile=False`, for a model that can be compiled."""
    return not model.jit_compile and all(layer.supports_jit for layer in model._flatten_layers())


def make_crops_compilable() -> None:
    """Let `RandomCrop` be compiled. Keras takes a slice, whose bounds JAX must know to trace it."""
    RandomCrop.transform_images = _crop


def _crop(self: RandomCrop, images: Any, transformation: Any, training: bool = True) -> Any:
    if not training or not any(isinstance(start, jax.core.Tracer) for start in transformation):
        return _stock_crop(self, images, transformation, training)
    images = self.backend.cast(images, self.compute_dtype)
    sides = (self.height_axis, self.height), (self.width_axis, self.width)
    for start, (axis, size) in zip(transformation, sides, strict=True):
        images = jax.lax.dynamic_slice_in_dim(images, start, size, axis % images.ndim)
    return images
