"""State that Convoy keeps for a model, outside of what Keras tracks and saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from keras import Model
from keras.src.ops.function import Function

if TYPE_CHECKING:
    from convoy.keras_bridge.graphs import ModelGraph

_ATTRIBUTE = "_convoy"


class ModelState:
    """What this package keeps for a model; `engine.prepared_model` adds what the engine keeps.

    Attributes:
        traced_graph: the graph of a subclassed model's `call`, if it was traced.
        graph: the calls of the model's graph, cached by `graphs.model_graph`.
    """

    def __init__(self) -> None:
        self.traced_graph: Function | None = None
        self.graph: ModelGraph | None = None

    @classmethod
    def of(cls, model: Model) -> Self:
        """Return the state of a model, creating it on first use."""
        state = vars(model).get(_ATTRIBUTE)
        if isinstance(state, cls):
            return state
        new = cls()
        if state is not None:
            vars(new).update(vars(state))
        # Not through `setattr`: Keras would track it as a part of the model.
        vars(model)[_ATTRIBUTE] = new
        return new
