"""Cross-entropy on probabilities, and accuracy, for labels that are numbers or shares."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="convoy")
class SmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy with labels that give a share to every class.

    The right class has `1 - smoothing + smoothing / classes`, all others `smoothing / classes`.

    Args:
        smoothing: the share that is given away, from 0 to 1.
        name: of the loss.
        **kwargs: those of `keras.losses.Loss`.
    """

    def __init__(
        self, smoothing: float, name: str = "smoothed_crossentropy", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.smoothing = smoothing

    def call(self, labels: Any, probabilities: Any) -> Any:
        classes = probabilities.shape[-1]
        labels = ops.reshape(ops.cast(labels, "int32"), (-1,))
        shares = ops.one_hot(labels, classes, dtype=probabilities.dtype)
        return keras.losses.categorical_crossentropy(
            shares, probabilities, label_smoothing=self.smoothing
        )

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"smoothing": self.smoothing}


def make_loss(smoothing: float | None, *, shares: bool) -> keras.losses.Loss:
    """Return the loss of a run.

    Args:
        smoothing: of the labels; 0 and `None` leave them as they are.
        shares: whether labels are a share for each class, as mixing images makes them.

    Raises:
        ValueError: if `smoothing` is not from 0 to 1.
    """
    if smoothing is not None and not 0 <= smoothing <= 1:
        raise ValueError(f"--label-smoothing {smoothing} is not from 0 to 1.")
    if shares:
        return keras.losses.CategoricalCrossentropy(label_smoothing=smoothing or 0.0)
    if smoothing:
        return SmoothedCrossentropy(smoothing)
    return keras.losses.SparseCategoricalCrossentropy()


def make_accuracy(name: str, *, shares: bool) -> keras.metrics.Metric:
    if shares:
        return keras.metrics.CategoricalAccuracy(name=name)
    return keras.metrics.SparseCategoricalAccuracy(name=name)
