"""Tracing of a subclassed model: its graph, from a symbolic call.

Keras records a node for each operation that is called on symbolic tensors, so calling a model's
`call` on such tensors yields the nodes of its graph.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import keras
from convoy.keras_bridge.graphs import FIXED, GraphCall, graph_nodes, set_traced_graph
from convoy.keras_bridge.models import call_training_argument, layers_are_built
from keras import Model
from keras.src import tree
from keras.src.ops.function import Function

# `call` runs twice, with `training` true and false. The graphs must be equal, except that calls may
# pass `training` on:
#
#     layer(x, training=training)     true, then false: follows the model
#     layer(x, training=False)        false both times: fixed, marked with `FIXED`
#
# A model that uses `training` in other ways has two different graphs, so it cannot be split into
# stages.


class UntraceableError(ValueError):
    """Raised for a model whose `call` cannot be represented by a graph."""


class TracedGraph(Function):
    """The graph of a subclassed model's `call`."""

    # A functional model overrides this method in the same way; a plain `Function` does not convert
    # its inputs.
    def _standardize_inputs(self, inputs: Any) -> list[Any]:
        flat = keras.tree.flatten(inputs)
        return [
            keras.ops.convert_to_tensor(value, dtype=tensor.dtype)
            for value, tensor in zip(flat, self.inputs, strict=True)
        ]


def built_inputs(model: Model) -> Any:
    """Return symbolic tensors of the shapes that a model was built for, or `None`."""
    # Keras keeps the arguments of `build()` here, to save them with the model.
    shapes = model._build_shapes_dict
    if not model.built or not shapes or len(shapes) != 1:
        return None
    (shape,) = shapes.values()
    return tree.map_shape_structure(lambda s: keras.KerasTensor(s, keras.config.floatx()), shape)


def is_built_for(model: Model, inputs: Any, *, predicts: bool = False) -> bool:
    """Build a model with a symbolic call, as Keras does, if it is not built yet.

    Args:
        model: any model.
        inputs: `keras.KerasTensor`s in the structure that `call` takes.
        predicts: whether the model is about to predict, instead of being trained or evaluated.

    Returns:
        Whether the model is built now. If not, Keras raises the error when it builds the model for
        data.
    """
    if not layers_are_built(model):
        # A nested sequential model keeps the value of the first call of its layers, so the value
        # must be the one that Keras passes: `predict` passes none, unless the argument may have no
        # default.
        training = call_training_argument(model, False) if predicts else {"training": False}
        with warnings.catch_warnings(action="ignore"):
            try:
                model(inputs, **training)
            except Exception:
                return False
    return True


def trace(model: Model, inputs: Any) -> TracedGraph:
    """Trace a subclassed model, and keep its graph.

    The graph calls the model's own layers, with their weights.

    Args:
        model: built model whose `call` consists of Keras layers and `keras.ops`.
        inputs: `keras.KerasTensor`s in the structure that `call` takes.

    Raises:
        UntraceableError: if `call` cannot be represented by a graph.
    """
    graph = _call(model, inputs, training=True)
    _compare(model, graph, _call(model, inputs, training=False))
    _check_weights(model, graph)
    set_traced_graph(model, graph)
    return graph


def _call(model: Model, inputs: Any, *, training: bool) -> TracedGraph:
    before = {id(layer): len(layer._inbound_nodes) for layer in model._flatten_layers()}
    given = keras.tree.map_structure(lambda tensor: _entry(model, tensor), inputs)
    with _inside_of_call(model, training):
        try:
            outputs = model.call(given, **call_training_argument(model, training))
        except Exception as error:
            raise UntraceableError(
                f"{type(model).__name__}.call() cannot be traced with symbolic tensors, as stages "
                f"need: {error} Make it of Keras layers and keras.ops, and put everything else "
                "into layers."
            ) from error
    for output in keras.tree.flatten(outputs):
        if not isinstance(output, keras.KerasTensor):
            raise UntraceableError(
                f"{type(model).__name__}.call() returns a {type(output).__name__} that is not the "
                "output of a layer. Return what layers or keras.ops return."
            )
    graph = TracedGraph(given, outputs)
    found = {id(node) for nodes in graph._nodes_by_depth.values() for node in nodes}
    for layer in model._flatten_layers(include_self=False):
        if any(id(node) not in found for node in layer._inbound_nodes[before[id(layer)] :]):
            raise UntraceableError(
                f"{type(model).__name__}.call() calls {layer.name!r}, but returns nothing that "
                "depends on it, so no stage would run the call. Use its output, or remove the "
                "call."
            )
    return graph


def _entry(model: Model, tensor: keras.KerasTensor) -> keras.KerasTensor:
    """Return a symbolic input of the type that Keras passes to `call`."""
    dtype = str(tensor.dtype)
    if model.autocast and "float" in dtype:
        dtype = model.input_dtype
    return keras.Input(batch_shape=tensor.shape, dtype=dtype)


@contextlib.contextmanager
def _inside_of_call(model: Model, training: bool) -> Iterator[None]:
    """Set the call context that the model's `__call__` would set.

    Layers that are called without `training` take it from this context. It stays empty for a model
    whose `call` does not take `training`.
    """
    value = training if model._call_has_training_arg else None
    model._get_call_context().set_value("training", value)
    try:
        yield
    finally:
        model._maybe_reset_call_context()


def _compare(model: Model, training: TracedGraph, other: TracedGraph) -> None:
    """Check that the graphs are equal, and mark the calls with a fixed `training` argument."""
    ours, theirs = graph_nodes(training), graph_nodes(other)
    own = {id(layer) for layer in model._flatten_layers()}
    if _describe(training, ours, own) != _describe(other, theirs, own):
        raise UntraceableError(
            f"{type(model).__name__}.call() makes other calls in training than in inference, but a "
            "pipeline needs the same calls in both. Put the difference into a layer that takes "
            "`training`."
        )
    for node, same in zip(ours, theirs, strict=True):
        passed = node.arguments.kwargs.get("training", True)
        is_same = passed == same.arguments.kwargs.get("training", False)
        vars(node)[FIXED] = is_same or not model._call_has_training_arg


def _describe(graph: TracedGraph, nodes: list[Any], own: set[int]) -> list[tuple]:
    """Return a description of a graph that is equal for equal graphs.

    Args:
        graph: graph of one call of the model.
        nodes: calls of the graph.
        own: ids of the model's layers. Other operations are created by each `call`, so they are
            compared by their type.
    """
    names = {id(tensor): f"input {number}" for number, tensor in enumerate(graph.inputs)}
    found: list[tuple] = []
    for number, node in enumerate(nodes):
        args, kwargs = node.arguments.fill_in(names)
        kwargs.pop("training", None)
        operation = node.operation
        known = id(operation) if id(operation) in own else type(operation)
        found.append((known, str((args, kwargs))))
        names |= {id(tensor): f"{number}.{i}" for i, tensor in enumerate(node.outputs)}
    found.append((None, str([names[id(tensor)] for tensor in graph.outputs])))
    return found


def _check_weights(model: Model, graph: TracedGraph) -> None:
    """Check that the weights of the calls are the weights of the model."""
    called = {id(v): v for node in graph_nodes(graph) for v in GraphCall(node).variables}
    own = {id(v): v for v in model.variables}
    for number, variable in (called | own).items():
        if number not in called:
            raise UntraceableError(
                f"Weight {variable.path!r} of {type(model).__name__} belongs to no layer that "
                "call() calls on its inputs, so no stage would train it. Put it into a layer."
            )
        if number not in own:
            raise UntraceableError(
                f"{type(model).__name__}.call() makes a layer with weight {variable.path!r}, which "
                "the model does not keep. Make it in __init__()."
            )
