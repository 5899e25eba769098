"""The graph of a subclassed model, found by calling it once on tensors without values."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import keras
from convoy.keras_bridge.graphs import FIXED, GraphCall, set_traced_graph
from keras import Model
from keras.src import tree
from keras.src.ops.function import Function


class UntraceableError(ValueError):
    """Says why a model's calls cannot be known without running it."""


class TracedGraph(Function):
    """The calls that a subclassed model made."""

    def _standardize_inputs(self, inputs: Any) -> list[Any]:
        flat = keras.tree.flatten(inputs)
        return [
            keras.ops.convert_to_tensor(value, dtype=tensor.dtype)
            for value, tensor in zip(flat, self.inputs, strict=True)
        ]


def built_inputs(model: Model) -> Any:
    """Return tensors without values as a model was built for, if their shapes are known."""
    shapes = model._build_shapes_dict
    if not model.built or not shapes or len(shapes) != 1:
        return None
    (shape,) = shapes.values()
    return tree.map_shape_structure(lambda s: keras.KerasTensor(s, keras.config.floatx()), shape)


def is_built(model: Model) -> bool:
    """Say whether a model and all its layers have their weights."""
    return all(layer.built for layer in model._flatten_layers())


def is_built_for(model: Model, inputs: Any) -> bool:
    """Build a model by a call on tensors without values, as Keras does, if it is not built yet.

    Returns:
        Whether it is built now; Keras says why not when it builds it for its data.
    """
    if not is_built(model):
        # One without a default must be passed.
        told = {"training": False} if model._call_has_training_arg else {}
        with warnings.catch_warnings(action="ignore"):
            try:
                model(inputs, **told)
            except Exception:
                return False
    return True


def trace(model: Model, inputs: Any) -> TracedGraph:
    """Call a subclassed model on tensors without values, and keep the graph of its layers.

    Its layers and their weights are those of the model.

    Args:
        model: built; its `call` is made of Keras layers and `keras.ops`.
        inputs: `keras.KerasTensor`s in the structure that `call` takes.

    Raises:
        UntraceableError: if `call` does something else.
    """
    graph = _call(model, inputs, training=True)
    _compare(model, graph, _call(model, inputs, training=False))
    _check_weights(model, graph)
    set_traced_graph(model, graph)
    return graph


def _call(model: Model, inputs: Any, *, training: bool) -> TracedGraph:
    before = {id(layer): len(layer._inbound_nodes) for layer in model._flatten_layers()}
    given = keras.tree.map_structure(lambda tensor: _entry(model, tensor), inputs)
    told = {"training": training} if model._call_has_training_arg else {}
    with _inside_of_call(model, training):
        try:
            outputs = model.call(given, **told)
        except Exception as error:
            raise UntraceableError(
                f"{type(model).__name__}.call() cannot be followed without values, as stages need: "
                f"{error} Make it of Keras layers and keras.ops, and put everything else into "
                "layers."
            ) from error
    for output in keras.tree.flatten(outputs):
        if not isinstance(output, keras.KerasTensor):
            raise UntraceableError(
                f"{type(model).__name__}.call() returns a {type(output).__name__}, which no layer "
                "has made of its inputs. Return what layers or keras.ops return."
            )
    graph = TracedGraph(given, outputs)
    found = {id(node) for nodes in graph._nodes_by_depth.values() for node in nodes}
    for layer in model._flatten_layers(include_self=False):
        if any(id(node) not in found for node in layer._inbound_nodes[before[id(layer)] :]):
            raise UntraceableError(
                f"{type(model).__name__}.call() calls {layer.name!r} for nothing that it returns, "
                "so the call would be left out of its stages. Use its output, or leave it out."
            )
    return graph


def _entry(model: Model, tensor: keras.KerasTensor) -> keras.KerasTensor:
    """Return an input of the type that Keras hands to `call`."""
    dtype = str(tensor.dtype)
    if model.autocast and "float" in dtype:
        dtype = model.input_dtype
    return keras.Input(batch_shape=tensor.shape, dtype=dtype)


@contextlib.contextmanager
def _inside_of_call(model: Model, training: bool) -> Iterator[None]:
    """Have layers be told of training as they are inside of the model's `__call__`.

    A model whose `call` does not take `training` is told nothing, and neither are its layers.
    """
    told = training if model._call_has_training_arg else None
    model._get_call_context().set_value("training", told)
    try:
        yield
    finally:
        model._maybe_reset_call_context()


def _calls(graph: TracedGraph) -> list[Any]:
    depths = sorted(graph._nodes_by_depth, reverse=True)
    return [n for depth in depths for n in graph._nodes_by_depth[depth] if not n.is_input]


def _compare(model: Model, training: TracedGraph, other: TracedGraph) -> None:
    """Refuse a model that makes other calls in training; mark calls with a mind of their own."""
    ours, theirs = _calls(training), _calls(other)
    own = {id(layer) for layer in model._flatten_layers()}
    if _words(training, ours, own) != _words(other, theirs, own):
        raise UntraceableError(
            f"{type(model).__name__}.call() makes other calls in training than otherwise, but "
            "stages hold the same calls. Put the difference into a layer that takes `training`."
        )
    for node, same in zip(ours, theirs, strict=True):
        told = node.arguments.kwargs.get("training", True)
        is_same = told == same.arguments.kwargs.get("training", False)
        vars(node)[FIXED] = is_same or not model._call_has_training_arg


def _words(graph: TracedGraph, nodes: list[Any], own: set[int]) -> list[tuple]:
    """Say what is computed from what, in words that are equal for equal graphs.

    Args:
        graph: of one way to call the model.
        nodes: its calls.
        own: the layers of the model; others, without weights, are made by `call` each time.
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
    """Refuse weights that are in no call, and calls whose weights are not the model's."""
    called = {id(v): v for node in _calls(graph) for v in GraphCall(node).variables}
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
