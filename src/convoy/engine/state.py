"""What a run carries from step to step."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import keras
from convoy import keras_bridge
from convoy.engine.prepared_model import PreparedModel

Arrays = list[jax.Array]
Mode = Literal["train", "evaluate", "predict"]


class State(NamedTuple):
    """The values of a model's variables, in Keras's own order."""

    trainable: Arrays
    non_trainable: Arrays
    optimizer: Arrays
    metrics: Arrays
    numerics: Arrays = []  # noqa: RUF012 - a tuple's, which nobody changes
    """Loss scale and random key of the weight update; see `settings.py`."""


class Variables:
    """The variables of a model as they were when its programs were made.

    Between device calls the values live in the Keras variables, so whatever a callback reads or
    writes is what the next device call starts from.
    """

    def __init__(self, model: keras.Model, mode: Mode) -> None:
        self.mode = mode
        self.parts: Any = State(
            trainable=model.trainable_variables,
            non_trainable=model.non_trainable_variables,
            optimizer=model.optimizer.variables if mode == "train" else [],
            metrics=model.metrics_variables if mode != "predict" else [],
            numerics=PreparedModel.of(model).numerics.variables if mode == "train" else [],
        )

    def are_those_of(self, model: keras.Model) -> bool:
        """Return whether a model still has these variables, and no others."""
        now = Variables(model, self.mode).parts
        return all(
            len(then) == len(part) and all(a is b for a, b in zip(then, part, strict=True))
            for then, part in zip(self.parts, now, strict=True)
        )

    def read(self) -> State:
        state = State(*(keras_bridge.values(part) for part in self.parts))
        distinct = {id(value) for values in state for value in values}
        return state if len(distinct) == sum(map(len, state)) else _without_sharing(state)

    def write(self, state: State) -> None:
        for part, values in zip(self.parts, state, strict=True):
            keras_bridge.assign(part, values)


def like(new: State, old: State) -> State:
    """Give a state the types of another, as the carry of a loop must have.

    A layer may have computed an update in a wider one.
    """
    return jax.tree.map(lambda n, o: jnp.asarray(n, o.dtype), new, old)


def _without_sharing(state: State) -> State:
    """Copy arrays that several variables share: a buffer can be donated only once."""
    seen: set[int] = set()

    def once(value: jax.Array) -> jax.Array:
        if id(value) in seen:
            return value.copy()
        seen.add(id(value))
        return value

    return State(*([once(value) for value in values] for values in state))
