"""Detection of models and data that the engine does not support, so that stock Keras runs them.

Keras marks layers that cannot be compiled by `supports_jit`. Its image augmentation layers have
this mark because of TensorFlow; JAX can compile them, with the same random numbers. Two layers
cannot be compiled. `AugMix` chooses operations with Python's generator, so a compiled program would
repeat the choice that was made during tracing. `RandomElasticTransform` has a kernel of random
size.
"""

from typing import Any, NamedTuple

import jax
import keras
from convoy.keras_bridge.steps import overridden
from keras import Model
from keras.src.layers.preprocessing.image_preprocessing.aug_mix import AugMix
from keras.src.layers.preprocessing.image_preprocessing.base_image_preprocessing_layer import (
    BaseImagePreprocessingLayer,
)
from keras.src.layers.preprocessing.image_preprocessing.random_crop import RandomCrop
from keras.src.layers.preprocessing.image_preprocessing.random_elastic_transform import (
    RandomElasticTransform,
)
from keras.src.trainers.data_adapters import data_adapter_utils

RUN_METHODS = {
    "fit": "train",
    "train_on_batch": "train",
    "evaluate": "test",
    "test_on_batch": "test",
    "predict": "predict",
    "predict_on_batch": "predict",
}
"""The methods that run a model, and Keras's word for each, as in `train_step`."""
_DECIDE_IN_PYTHON = (AugMix, RandomElasticTransform)
# Stored at import, because calls outside of a program still use it.
_stock_crop = RandomCrop.transform_images


class StockReason(NamedTuple):
    """The reason why stock Keras runs a model.

    Attributes:
        why: a sentence for the user.
        remedy: a sentence that tells the user how to run the model on the engine.
    """

    why: str
    remedy: str


def stock_reason(
    model: Model, method: str, inputs: list[Any], *, validates: bool = False
) -> StockReason | None:
    """Return the reason why stock Keras must run a method of a model, or `None`.

    Args:
        model: the model.
        method: the name of the method.
        inputs: its inputs, and those of its validation.
        validates: whether `fit` validates the model after epochs.
    """
    # A model that overrides one of these compiles its loop itself: the engine would bypass it.
    words = (RUN_METHODS[method], *(["test"] if validates else []))
    functions = tuple(f"make_{word}_function" for word in words)
    if own := overridden(model, functions):
        return StockReason(
            f"{type(model).__name__} overrides {own[0]}.",
            "Override train_step, test_step or predict_step instead to use Convoy's engine.",
        )
    # Private, but `model.layers` does not list the layers inside of layers.
    layers = model._flatten_layers()
    uncompilable = [
        f"{layer.name} ({type(layer).__name__})"
        for layer in layers
        if isinstance(layer, _DECIDE_IN_PYTHON)
        or not (layer.supports_jit or isinstance(layer, BaseImagePreprocessingLayer))
    ]
    if uncompilable:
        return StockReason(
            f"{', '.join(uncompilable)} cannot be compiled.",
            "Apply it to the data outside the model to use Convoy's engine.",
        )
    if model.run_eagerly:
        return StockReason(
            "run_eagerly=True was passed to compile().", "Leave it out to use Convoy's engine."
        )
    # Keras itself sets `jit_compile` to `False` for a model with a marked layer.
    if not model.jit_compile and all(layer.supports_jit for layer in layers):
        return StockReason(
            "jit_compile=False was passed to compile().", "Leave it out to use Convoy's engine."
        )
    if keras.distribution.distribution() is not None:
        return StockReason(
            "A distribution of keras.distribution is set.",
            "Unset it, and pass the devices to convoy.Strategy, to use Convoy's engine.",
        )
    if any(map(is_sparse, keras.tree.flatten(inputs))):
        return StockReason("The input is sparse.", "Make it dense to use Convoy's engine.")
    return None


def is_sparse(value: Any) -> bool:
    """Return whether a value is a sparse matrix or tensor of JAX, SciPy or TensorFlow."""
    return (
        data_adapter_utils.is_jax_sparse(value)
        or data_adapter_utils.is_scipy_sparse(value)
        or data_adapter_utils.is_tensorflow_sparse(value)
    )


def make_crops_compilable() -> None:
    """Make `RandomCrop` compilable; Keras's slice has bounds that are unknown during tracing."""
    RandomCrop.transform_images = _crop


def _crop(self: RandomCrop, images: Any, transformation: Any, training: bool = True) -> Any:
    if not training or not any(isinstance(start, jax.core.Tracer) for start in transformation):
        return _stock_crop(self, images, transformation, training)
    # The same crop as Keras's slice, with a start that is known only when the program runs.
    images = self.backend.cast(images, self.compute_dtype)
    sides = (self.height_axis, self.height), (self.width_axis, self.width)
    for start, (axis, size) in zip(transformation, sides, strict=True):
        images = jax.lax.dynamic_slice_in_dim(images, start, size, axis % images.ndim)
    return images
