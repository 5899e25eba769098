"""`PipelineStage` blocks, and the tracing of subclassed models that use them."""

import contextlib
from contextvars import ContextVar
from typing import Self

import keras
from convoy import keras_bridge
from convoy.engine.prepared_model import PreparedModel
from convoy.keras_bridge import UntraceableError, graph_calls, graph_input_specs
from convoy.types import Data, PyTree

_current: ContextVar[int | None] = ContextVar("convoy_pipeline_stage", default=None)
entered_blocks = 0
"""Number of `PipelineStage` blocks that this process has entered."""


class PipelineStage:
    """Assigns layers to a stage of a pipeline: those created, and those called, in the block.

    A call in the block belongs to this stage, no matter where its layer was created. A layer that
    was created in the block keeps this stage when it is called outside of any block. In a
    subclassed model the blocks are in `call`, or around the creation of layers in `__init__`.

    Args:
        stage: number of the stage, from 0.

    Example:
    ```python
    with convoy.PipelineStage(0):
        x = keras.layers.Conv2D(32, 3)(inputs)
    with convoy.PipelineStage(1):
        x = keras.layers.Dense(10)(keras.layers.Flatten()(x))
    ```
    """

    def __init__(self, stage: int) -> None:
        if isinstance(stage, bool) or not isinstance(stage, int) or stage < 0:
            raise ValueError(f"PipelineStage({stage!r}): number stages from 0.")
        self.stage = stage
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        global entered_blocks
        inside = _current.get()
        if inside is not None:
            raise RuntimeError(
                f"PipelineStage({self.stage}) is inside of PipelineStage({inside}). End the outer "
                "block first."
            )
        entered_blocks += 1
        token = _current.set(self.stage)
        self._exit.callback(_current.reset, token)
        self._exit.enter_context(keras_bridge.marked_calls(_current.get))
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()


def trace_stages(model: keras.Model, x: Data = None, *, predicts: bool = False) -> None:
    """Trace a subclassed model if it may have stages, that is, if a `PipelineStage` was entered.

    Subclassed models nested in it, or in a functional model, are traced as well.

    Args:
        model: any model.
        x: input data that the model is about to run on, if known; else the model must be built.
        predicts: whether the model is about to predict, instead of being trained or evaluated.

    Raises:
        ValueError: if the model uses `PipelineStage` but cannot be traced, or was traced for other
            shapes.
    """
    if not keras_bridge.is_subclassed(model):
        _trace_nested(model)
        return
    prepared = PreparedModel.of(model)
    if prepared.has_no_stages:
        return
    known = graph_calls(model) is not None
    if not known and keras_bridge.layers_are_built(model) and not entered_blocks:
        return
    inputs = _symbolic_inputs(x)
    guessed = inputs is None
    if guessed:
        inputs = keras_bridge.built_inputs(model)
    if inputs is None or not keras_bridge.is_built_for(model, inputs, predicts=predicts):
        return
    if known:
        _check_shapes(model, inputs)
        if not guessed and prepared.has_guessed_types:
            prepared.has_guessed_types = False
            keras_bridge.trace(model, inputs)
    elif entered_blocks:
        _trace_if_staged(model, inputs)
        prepared.has_guessed_types = guessed


def trace_built_model(model: keras.Model) -> None:
    """Trace a subclassed model that was built, to split it into stages.

    Raises:
        ValueError: if the model was not built, or cannot be traced.
    """
    inputs = keras_bridge.built_inputs(model)
    if inputs is None or not keras_bridge.is_built_for(model, inputs):
        raise ValueError(
            f"{model.name!r} is a subclassed model that was not built, so its layers are not known "
            "yet. Call it on some inputs first, for example model(x[:1])."
        )
    keras_bridge.trace(model, inputs)
    prepared = PreparedModel.of(model)
    prepared.has_no_stages, prepared.has_guessed_types = False, True


def _trace_nested(model: keras.Model) -> None:
    """Trace the subclassed models that a model calls outside of any block."""
    if not entered_blocks:
        return
    for call in graph_calls(model) or []:
        nested = call.operation
        if not isinstance(nested, keras.Model) or call.mark is not None:
            continue
        if not keras_bridge.is_subclassed(nested):
            _trace_nested(nested)
            continue
        is_known = graph_calls(nested) is not None or PreparedModel.of(nested).has_no_stages
        if not is_known and call.given is not None and keras_bridge.layers_are_built(nested):
            _trace_if_staged(nested, call.given)


def _trace_if_staged(model: keras.Model, inputs: PyTree) -> None:
    before = entered_blocks
    try:
        keras_bridge.trace(model, inputs)
    except UntraceableError:
        if entered_blocks > before or keras_bridge.has_marked_layers(model):
            raise
    _trace_nested(model)
    calls = graph_calls(model, into_nested=True) or []
    if any(call.mark is not None for call in calls):
        return
    keras_bridge.set_traced_graph(model, None)
    if entered_blocks > before:
        raise ValueError(
            f"{model.name!r} uses PipelineStage inside of layers or models that its call() calls, "
            "which cannot be divided. Use it around their calls."
        )
    PreparedModel.of(model).has_no_stages = True


def _symbolic_inputs(x: Data) -> PyTree:
    """Return symbolic tensors for the inputs of a batch, or `None` if they are unknown."""
    if isinstance(x, keras.utils.PyDataset):
        x = keras_bridge.unpack(x[0])[0]
    elif hasattr(x, "element_spec"):
        x = keras_bridge.unpack(x.element_spec)[0]
    leaves = keras.tree.flatten(x)
    if not leaves or not all(hasattr(v, "shape") and hasattr(v, "dtype") for v in leaves):
        return None
    try:
        return keras.tree.map_structure(_symbolic_tensor, x)
    except (TypeError, ValueError):
        return None  # not numbers; the data adapter raises the error


def _symbolic_tensor(leaf: keras.KerasTensor) -> keras.KerasTensor:
    dtype = keras.backend.standardize_dtype(leaf.dtype)
    return keras.KerasTensor((None, *leaf.shape[1:]), dtype)


def _check_shapes(model: keras.Model, inputs: PyTree) -> None:
    for given, traced in zip(keras.tree.flatten(inputs), graph_input_specs(model), strict=True):
        pairs = zip(given.shape[1:], traced.shape[1:], strict=False)
        fits = all(None in pair or pair[0] == pair[1] for pair in pairs)
        if len(given.shape) != len(traced.shape) or not fits:
            raise ValueError(
                f"{model.name!r} is in stages that were found for inputs of shape "
                f"{tuple(traced.shape)}, but received {tuple(given.shape)}. Pass inputs of that "
                "shape, or create the model again."
            )
