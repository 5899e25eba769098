"""What a run carries from step to step."""

from __future__ import annotations

from typing import NamedTuple

import jax
import keras
from convoy import keras_bridge

Arrays = list[jax.Array]


class State(NamedTuple):
    """The values of a model's variables, in Keras's own order."""

    trainable: Arrays
    non_trainable: Arrays
    optimizer: Arrays
    metrics: Arrays


class Variables:
    """The variables of a model as they were when its programs were made.

    Between device calls the values live in the Keras variables, so whatever a callback reads or
    writes is what the next device call starts from.
    """

    def __init__(self, model: keras.Model, *, training: bool) -> None:
        self.parts = State(
            trainable=model.trainable_variables,
            non_trainable=model.non_trainable_variables,
            optimizer=model.optimizer.variables if training else [],
            metrics=model.metrics_variables if model.compiled else [],
        )

    def read(self) -> State:
        return State(*(keras_bridge.values(part) for part in self.parts))

    def write(self, state: State) -> None:
        for part, values in zip(self.parts, state, strict=True):
            keras_bridge.assign(part, values)
