"""Batch normalisation that knows of weight updates."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops


@keras.saving.register_keras_serializable(package="convoy")
class UpdateBatchNormalization(layers.BatchNormalization):
    """Batch normalisation whose moving statistics advance by one step per weight update.

    After the micro-batches of an update they are `momentum` times the old ones and `1 - momentum`
    times the mean of the micro-batches' own. With one micro-batch this is
    `keras.layers.BatchNormalization`.

    Args:
        micro_batches: in a weight update.
        **kwargs: those of `keras.layers.BatchNormalization`.
    """

    momentum: Any

    def __init__(self, micro_batches: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.micro_batches = micro_batches

    def build(self, input_shape: tuple) -> None:
        super().build(input_shape)
        self.position = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="position"
        )

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if not training or not self.trainable or self.micro_batches == 1:
            return super().call(inputs, training=training, mask=mask)
        # In a mean that is made step by step, the old value counts for what it is made of.
        each = (1.0 - self.momentum) / self.micro_batches
        before = self.momentum + each * ops.cast(self.position, "float32")
        whole, self.momentum = self.momentum, before / (before + each)
        try:
            outputs = super().call(inputs, training=training, mask=mask)
        finally:
            self.momentum = whole
        self.position.assign((self.position + 1) % self.micro_batches)
        return outputs

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"micro_batches": self.micro_batches}
