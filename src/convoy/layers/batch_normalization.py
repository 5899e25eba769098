"""Batch normalisation with statistics by weight update instead of by micro-batch."""

import keras
from convoy import context
from convoy.types import Json, Tensor
from keras import layers, ops


@keras.saving.register_keras_serializable(package="convoy")
class UpdateBatchNormalization(layers.BatchNormalization):
    """Batch normalisation whose moving statistics advance by one step per weight update.

    After the micro-batches of an update, they are `momentum` times the old statistics plus
    `1 - momentum` times the mean over the micro-batches. With one micro-batch this is
    `keras.layers.BatchNormalization`.

    Args:
        micro_batches: number of micro-batches in a weight update.
        **kwargs: arguments of `keras.layers.BatchNormalization`.
    """

    momentum: Tensor

    def __init__(self, micro_batches: int = 1, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.micro_batches = micro_batches

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        self.position = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="position"
        )

    def call(self, inputs: Tensor, training: bool | None = None, mask: Tensor = None) -> Tensor:
        if not training or not self.trainable or self.micro_batches == 1:
            return super().call(inputs, training=training, mask=mask)
        # With n micro-batches, old statistics S, and M_i those of micro-batch i, the result is
        #     m * S + (1 - m) / n * (M_1 + ... + M_n)
        # After i of them, the sum of the weights so far is `before`, so the running mean takes the
        # next one with a momentum of before / (before + (1 - m) / n).
        each = (1.0 - self.momentum) / self.micro_batches
        before = self.momentum + each * ops.cast(self.position, "float32")
        with context.changed([(self, "momentum", before / (before + each))]):
            outputs = super().call(inputs, training=training, mask=mask)
        self.position.assign((self.position + 1) % self.micro_batches)
        return outputs

    def get_config(self) -> Json:
        return super().get_config() | {"micro_batches": self.micro_batches}
