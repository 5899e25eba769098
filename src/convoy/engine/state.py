"""The state of a model that a training step reads and returns."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import keras
from convoy import keras_bridge
from convoy.engine.prepared_model import PreparedModel
from convoy.types import Arrays

Mode = Literal["train", "evaluate", "predict"]
Tree = TypeVar("Tree")
"""A PyTree, such as `State`."""


class State(NamedTuple):
    """The values of a model's variables, in Keras's own order.

    Attributes:
        trainable: the weights.
        non_trainable: statistics, and the states of random generators.
        optimizer: the optimizer's variables.
        metrics: the variables of metrics.
        numerics: state of the loss scale and random key of rounding; see `numerics.numerics`.
    """

    trainable: Arrays
    non_trainable: Arrays
    optimizer: Arrays
    metrics: Arrays
    numerics: Arrays = []  # noqa: RUF012 - a default of a tuple, which is never changed


class VariableParts(NamedTuple):
    """The variables of a model; the fields are those of `State`."""

    trainable: keras_bridge.Variables
    non_trainable: keras_bridge.Variables
    optimizer: keras_bridge.Variables
    metrics: keras_bridge.Variables
    numerics: keras_bridge.Variables

    @classmethod
    def of(cls, model: keras.Model, mode: Mode, prepared: PreparedModel) -> VariableParts:
        numerics = prepared.numerics
        return cls(
            trainable=model.trainable_variables,
            non_trainable=model.non_trainable_variables,
            optimizer=model.optimizer.variables if mode == "train" else [],
            metrics=model.metrics_variables if mode != "predict" else [],
            numerics=numerics.variables if mode == "train" else [],
        )


class Variables:
    """The variables of a model at the time when its programs were compiled.

    Between device calls, the Keras variables hold the values. Callbacks read and write them there,
    and the next device call starts from them.
    """

    def __init__(self, model: keras.Model, mode: Mode) -> None:
        self.mode = mode
        self._prepared = PreparedModel.of(model)
        self._compilation = keras_bridge.compilation(model)
        self.parts = VariableParts.of(model, mode, self._prepared)
        self._all = [variable for part in self.parts for variable in part]

    def are_those_of(self, model: keras.Model) -> bool:
        """Return whether a model still has these variables, and was not compiled again."""
        if self._compilation is not keras_bridge.compilation(model):
            return False
        now = VariableParts.of(model, self.mode, self._prepared)
        return all(
            len(then) == len(part) and all(a is b for a, b in zip(then, part, strict=True))
            for then, part in zip(self.parts, now, strict=True)
        )

    def read(self) -> State:
        values = keras_bridge.values(self._all)
        if len({id(value) for value in values}) < len(values):
            values = _without_sharing(values)
        remaining = iter(values)
        return State(*([next(remaining) for _ in part] for part in self.parts))

    def write(self, state: State) -> None:
        keras_bridge.assign(self._all, [value for values in state for value in values])


def like(new: Tree, old: Tree) -> Tree:
    """Cast a state or logs to the dtypes of another, because the carry of a loop has fixed dtypes.

    A layer may compute an update in a wider dtype.
    """
    return jax.tree.map(lambda n, o: jnp.asarray(n, o.dtype), new, old)


def _without_sharing(values: Arrays) -> Arrays:
    """Copy arrays that several variables share, because a buffer can be donated only once."""
    seen: set[int] = set()
    distinct = []
    for value in values:
        distinct.append(value.copy() if id(value) in seen else value)
        seen.add(id(value))
    return distinct
