"""Cross-entropy on probabilities and accuracy, for labels that are classes or probabilities."""

from typing import Any

import jax
import keras
from convoy.types import Json
from keras import ops


@keras.saving.register_keras_serializable(package="convoy")
class SmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy of sparse labels with label smoothing.

    The label probability is `1 - smoothing + smoothing / classes` for the correct class and
    `smoothing / classes` for all others.

    Args:
        smoothing: probability that is spread over all classes, from 0 to 1.
        name: name of the loss.
        **kwargs: arguments of `keras.losses.Loss`.
    """

    def __init__(
        self, smoothing: float, name: str = "smoothed_crossentropy", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.smoothing = smoothing

    def call(self, labels: jax.Array, probabilities: jax.Array) -> jax.Array:
        classes = probabilities.shape[-1]
        labels = ops.reshape(ops.cast(labels, "int32"), (-1,))
        one_hot = ops.one_hot(labels, classes, dtype=probabilities.dtype)
        return keras.losses.categorical_crossentropy(
            one_hot, probabilities, label_smoothing=self.smoothing
        )

    def get_config(self) -> Json:
        return super().get_config() | {"smoothing": self.smoothing}


def make_loss(smoothing: float | None, *, probabilities: bool) -> keras.losses.Loss:
    """Return the loss of a run.

    Args:
        smoothing: label smoothing; 0 and `None` are off.
        probabilities: whether labels are probabilities of all classes, as mixup makes them.

    Raises:
        ValueError: if `smoothing` is not from 0 to 1.
    """
    if smoothing is not None and not 0 <= smoothing <= 1:
        raise ValueError(f"--label-smoothing {smoothing}: pass a number from 0 to 1.")
    if probabilities:
        return keras.losses.CategoricalCrossentropy(label_smoothing=smoothing or 0.0)
    if smoothing:
        return SmoothedCrossentropy(smoothing)
    return keras.losses.SparseCategoricalCrossentropy()


def make_accuracy(name: str, *, probabilities: bool) -> keras.metrics.Metric:
    if probabilities:
        return keras.metrics.CategoricalAccuracy(name=name)
    return keras.metrics.SparseCategoricalAccuracy(name=name)
