"""Stages of subclassed models, whose layers are known once they are called."""

from __future__ import annotations

from typing import Any

import keras
from convoy import keras_bridge
from convoy.engine.prepared_model import PreparedModel
from convoy.keras_bridge import UntraceableError, graph_calls, graph_input_specs
from convoy.pipeline import pipeline_stage


def find_stages(model: keras.Model, x: Any = None) -> None:
    """Trace a subclassed model if it may have stages: if a `PipelineStage` was ever used.

    The same is done with subclassed models inside of it, or inside of a functional one.

    Args:
        model: any.
        x: what it is about to be called on, if that is known; else it must be built.

    Raises:
        ValueError: if it uses `PipelineStage` but cannot be traced, or was traced for other
            shapes.
    """
    if not keras_bridge.is_subclassed(model):
        _find_in_nested(model)
        return
    prepared = PreparedModel.of(model)
    if prepared.has_no_stages:
        return
    known = graph_calls(model) is not None
    if not known and keras_bridge.is_built(model) and not pipeline_stage.blocks():
        return
    inputs = _like(x)
    guessed = inputs is None
    if guessed:
        inputs = keras_bridge.built_inputs(model)
    if inputs is None or not keras_bridge.is_built_for(model, inputs):
        return
    if known:
        _check_shapes(model, inputs)
        if not guessed and prepared.has_guessed_types:
            prepared.has_guessed_types = False
            keras_bridge.trace(model, inputs)
    elif pipeline_stage.blocks():
        _trace_if_staged(model, inputs)
        prepared.has_guessed_types = guessed


def _find_in_nested(model: keras.Model) -> None:
    """Trace the subclassed models that a model calls outside of any block."""
    if not pipeline_stage.blocks():
        return
    for call in graph_calls(model) or []:
        nested = call.operation
        if not isinstance(nested, keras.Model) or call.mark is not None:
            continue
        if not keras_bridge.is_subclassed(nested):
            _find_in_nested(nested)
            continue
        is_known = graph_calls(nested) is not None or PreparedModel.of(nested).has_no_stages
        if not is_known and call.given is not None and keras_bridge.is_built(nested):
            _trace_if_staged(nested, call.given)


def _trace_if_staged(model: keras.Model, inputs: Any) -> None:
    before = pipeline_stage.blocks()
    try:
        keras_bridge.trace(model, inputs)
    except UntraceableError:
        if pipeline_stage.blocks() > before or keras_bridge.has_marked_layers(model):
            raise
    _find_in_nested(model)
    calls = graph_calls(model, into_nested=True) or []
    if any(call.mark is not None for call in calls):
        return
    keras_bridge.set_traced_graph(model, None)
    if pipeline_stage.blocks() > before:
        raise ValueError(
            f"{model.name!r} uses PipelineStage inside of layers or models that its call() calls, "
            "which stay whole. Use it around their calls."
        )
    PreparedModel.of(model).has_no_stages = True


def trace(model: keras.Model) -> None:
    """Trace a subclassed model that was built, to cut it into stages.

    Raises:
        ValueError: if it was not built, or cannot be traced.
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


def _like(x: Any) -> Any:
    """Return tensors without values like those of a batch, if it is known what they are like."""
    if isinstance(x, keras.utils.PyDataset):
        x = keras_bridge.unpack(x[0])[0]
    elif hasattr(x, "element_spec"):
        x = keras_bridge.unpack(x.element_spec)[0]
    leaves = keras.tree.flatten(x)
    if not leaves or not all(hasattr(v, "shape") and hasattr(v, "dtype") for v in leaves):
        return None
    try:
        return keras.tree.map_structure(_tensor, x)
    except (TypeError, ValueError):
        return None  # no numbers; whoever reads the data says so


def _tensor(leaf: Any) -> keras.KerasTensor:
    dtype = keras.backend.standardize_dtype(leaf.dtype)
    return keras.KerasTensor((None, *leaf.shape[1:]), dtype)


def _check_shapes(model: keras.Model, inputs: Any) -> None:
    for given, traced in zip(keras.tree.flatten(inputs), graph_input_specs(model), strict=True):
        pairs = zip(given.shape[1:], traced.shape[1:], strict=False)
        fits = all(None in pair or pair[0] == pair[1] for pair in pairs)
        if len(given.shape) != len(traced.shape) or not fits:
            raise ValueError(
                f"{model.name!r} is in stages that were found for inputs of shape "
                f"{tuple(traced.shape)}, but received {tuple(given.shape)}. Pass inputs of that "
                "shape, or make the model anew."
            )
