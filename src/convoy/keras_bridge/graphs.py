"""The graph that a functional model is."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any, Self

import keras
from convoy.keras_bridge.variables import Variables
from keras import Model
from keras.src.backend.common import masking
from keras.src.models import functional
from keras.src.ops.function import Function
from keras.src.ops.node import Node

get_keras_mask = masking.get_keras_mask
set_keras_mask = masking.set_keras_mask
_MARK = "_convoy_stage"
_STATE = "_convoy"
FIXED = "_convoy_fixed_training"
"""Marks calls that are told the same about training whatever the model is told."""
_plain_node = Node.__dict__["__init__"]
_plain_operation = keras.Operation.__dict__["__new__"]
_marking = threading.Lock()
_marks: list[Callable[[], int | None]] = []


@contextlib.contextmanager
def marked_calls(mark: Callable[[], int | None]) -> Iterator[None]:
    """Mark every operation that is made, and every call that is recorded, in the block.

    Args:
        mark: returns the mark of the thread that asks, if it has one.
    """

    def node(self: Any, *args: Any, **kwargs: Any) -> None:
        _plain_node(self, *args, **kwargs)
        vars(self)[_MARK] = mark()

    def operation(cls: type, *args: Any, **kwargs: Any) -> Any:
        made = _plain_operation.__func__(cls, *args, **kwargs)
        vars(made)[_MARK] = mark()
        return made

    with _marking:
        _marks.append(mark)
        Node.__init__ = node
        keras.Operation.__new__ = staticmethod(operation)
    try:
        yield
    finally:
        with _marking:
            _marks.remove(mark)
            if not _marks:
                Node.__init__ = _plain_node
                keras.Operation.__new__ = _plain_operation


def has_marked_layers(model: Model) -> bool:
    """Say whether a layer of a model was made in a block of `marked_calls`."""
    layers = model._flatten_layers(include_self=False)
    return any(vars(layer).get(_MARK) is not None for layer in layers)


class GraphCall:
    """One call of an operation in the graph of a functional model.

    Args:
        node: Keras's record of the call.
        nesting: the call of the nested model that it is part of, if there is one.
    """

    def __init__(self, node: Any, nesting: Nesting | None = None) -> None:
        self._node = node
        self._nesting = nesting
        self.operation: keras.Operation = node.operation
        self.name: str = node.operation.name
        self.inputs = tuple(id(tensor) for tensor in node.input_tensors)
        self.outputs = tuple(id(tensor) for tensor in node.outputs)
        self.input_shapes = tuple((tuple(t.shape), str(t.dtype)) for t in node.input_tensors)
        self.output_shapes = tuple((tuple(t.shape), str(t.dtype)) for t in node.outputs)
        if nesting is not None:
            self.name = f"{nesting.name}/{self.name}"
            self._own_inputs = self.inputs
            self.inputs = tuple(nesting.tensors[tensor] for tensor in self.inputs)
            self.outputs = tuple(nesting.tensors[tensor] for tensor in self.outputs)

    @property
    def mark(self) -> int | None:
        """What `marked_calls` said of the call, else of the operation when it was made.

        What was said of a call of the model around it counts more, and of that model less.
        """
        around = self._nesting
        if around is not None and around.call_mark is not None:
            return around.call_mark
        own = vars(self._node).get(_MARK)
        own = own if own is not None else vars(self.operation).get(_MARK)
        return around.mark if own is None and around is not None else own

    @property
    def given(self) -> Any:
        """The tensors that it was called on, in their structure; `None` if not by one argument."""
        args = self._node.arguments.args
        flat = keras.tree.flatten(args[0]) if args else []
        return args[0] if [id(tensor) for tensor in flat] == list(self._own_ids()) else None

    @property
    def variables(self) -> Variables:
        operation = self.operation
        return list(operation.variables) if isinstance(operation, keras.layers.Layer) else []

    @property
    def settings(self) -> str | None:
        """Say what is computed, in words that are equal for equal layers; `None` if unknown."""
        try:
            config = dict(self.operation.get_config())
        except (NotImplementedError, TypeError, ValueError):
            return None
        config.pop("name", None)
        tensors = dict.fromkeys(self._own_ids(), "tensor")
        return f"{type(self.operation)} {config} {self._node.arguments.fill_in(tensors)}"

    def _own_ids(self) -> tuple[int, ...]:
        return self.inputs if self._nesting is None else self._own_inputs

    def run(self, tensors: dict[int, Any], wrap: Callable[[Any], Callable[..., Any]]) -> None:
        """Compute the outputs from the inputs among `tensors`, and add them."""
        own = tensors
        if self._nesting is not None:
            pairs = zip(self._own_inputs, self.inputs, strict=True)
            own = {inner: self._nesting.enter(inner, tensors[outer]) for inner, outer in pairs}
        args, kwargs = self._node.arguments.fill_in(own)
        if self._nesting is not None and self._nesting.told is not None:
            wrap = with_training(self._nesting.told)
        operation = self.operation if vars(self._node).get(FIXED) else wrap(self.operation)
        outputs = keras.tree.flatten(operation(*args, **kwargs))
        tensors.update(zip(self.outputs, outputs, strict=True))


class Nesting:
    """One call of a model inside of another one, whose calls are taken apart.

    Attributes:
        name: of the nested model, with those around it before it.
        tensors: the numbers by which the nested graph's tensors are known outside of it.
        call_mark: what `marked_calls` said of the call.
        mark: what it said of the nested model, when that was made.
        told: whether it trains, if it is told the same whatever the model around it is told.
    """

    def __init__(self, call: GraphCall, fresh: Iterator[int]) -> None:
        graph = _graph(call.operation)
        around = call._nesting
        self.name = call.name
        self.call_mark = vars(call._node).get(_MARK)
        self.mark = vars(call.operation).get(_MARK)
        self.told: bool | None = None if around is None else around.told
        if vars(call._node).get(FIXED):
            self.told = bool(call._node.arguments.kwargs.get("training"))
        if around is not None:
            outer = around.call_mark
            self.call_mark = self.call_mark if outer is None else outer
            self.mark = around.mark if self.mark is None else self.mark
        self._types = {id(tensor): tensor.dtype for tensor in graph.inputs}
        self.tensors = dict(zip(map(id, graph.inputs), call.inputs, strict=True))
        self.tensors |= dict(zip(map(id, graph.outputs), call.outputs, strict=True))
        for node in _nodes(graph):
            for tensor in node.outputs:
                if id(tensor) not in self.tensors:
                    self.tensors[id(tensor)] = next(fresh)

    def enter(self, inner: int, value: Any) -> Any:
        """Convert what comes from outside as the nested model does."""
        dtype = self._types.get(inner)
        return value if dtype is None else keras.ops.convert_to_tensor(value, dtype=dtype)


def graph_calls(model: Model, *, into_nested: bool = False) -> list[GraphCall] | None:
    """Return the calls of a model in their order, or `None` if they are not known.

    Args:
        model: a functional or sequential one, or a subclassed one that was traced.
        into_nested: whether calls of nested models stand in the place of the call of the whole.
    """
    graph = model_graph(model)
    if graph is None:
        return None
    return graph.nested_calls if into_nested else graph.calls


class ModelState:
    """What this package keeps for a model; `engine.prepared_model` adds what the engine keeps.

    Attributes:
        traced_graph: the graph of a subclassed model's `call`, if it was traced.
        graph: the calls of the model's graph, cached by `model_graph`.
    """

    def __init__(self) -> None:
        self.traced_graph: Function | None = None
        self.graph: ModelGraph | None = None

    @classmethod
    def of(cls, model: Model) -> Self:
        """Return the state of a model, creating it on first use."""
        state = vars(model).get(_STATE)
        if isinstance(state, cls):
            return state
        new = cls()
        if state is not None:
            vars(new).update(vars(state))
        # Not through `setattr`: Keras would track it as a part of the model.
        vars(model)[_STATE] = new
        return new


class ModelGraph:
    """The calls of a model's graph, listed once and kept as long as the graph is the same.

    Attributes:
        function: the graph, as Keras keeps it or as it was traced.
        calls: its calls in their order.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.calls = [GraphCall(node) for node in _nodes(function)]
        self._nested: list[tuple[Model, Function | None]] = []

    @cached_property
    def nested_calls(self) -> list[GraphCall]:
        """The calls, with those of nested models in the place of the call of each."""
        return self._taken_apart(self.calls, itertools.count(-1, -1))

    @cached_property
    def is_marked(self) -> bool:
        """Whether `marked_calls` has marked one of the calls."""
        return any(call.mark is not None for call in self.nested_calls)

    def is_of(self, model: Model) -> bool:
        """Return whether a model, and each model nested in it, still has the same graph."""
        return _graph(model) is self.function and all(
            _graph(nested) is function for nested, function in self._nested
        )

    def _taken_apart(self, calls: list[GraphCall], fresh: Iterator[int]) -> list[GraphCall]:
        found: list[GraphCall] = []
        for call in calls:
            if isinstance(call.operation, Model):
                self._nested.append((call.operation, _graph(call.operation)))
            if not _can_be_taken_apart(call):
                found.append(call)
                continue
            nesting = Nesting(call, fresh)
            inner = [GraphCall(node, nesting) for node in _nodes(_graph(call.operation))]
            found += self._taken_apart(inner, fresh)
        return found


def model_graph(model: Model) -> ModelGraph | None:
    """Return the calls of a model's graph, or `None` if they are not known.

    The graph is walked on the first call, and again only after it has changed: when layers were
    added to a sequential model, or a subclassed model was traced.
    """
    state = ModelState.of(model)
    if state.graph is None or not state.graph.is_of(model):
        function = _graph(model)
        state.graph = None if function is None else ModelGraph(function)
    return state.graph


def _can_be_taken_apart(call: GraphCall) -> bool:
    """Say whether a call is nothing but that of a nested graph, which runs each layer once.

    A layer that runs again forgets the loss that it added before, unless a model is around both.
    """
    nested = call.operation
    if not isinstance(nested, Model):
        return False
    graph = own_graph(nested) if type(nested).call in _GRAPH_CALLS else traced_graph(nested)
    if graph is None:
        return False
    ranks = [len(tensor.shape) for tensor in graph.inputs]
    given = [len(shape) for shape, _ in call.input_shapes]
    outputs = [id(tensor) for tensor in graph.outputs]
    passed_on = set(outputs) & {id(tensor) for tensor in graph.inputs}
    operations = [id(node.operation) for node in _nodes(graph)]
    each_once = all(len(set(found)) == len(found) for found in (outputs, operations))
    return ranks == given and each_once and not passed_on


_GRAPH_CALLS = (functional.Functional.call, keras.Sequential.call)


def _nodes(graph: Any) -> list[Any]:
    depths = sorted(graph._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in graph._nodes_by_depth[depth]]
    return [node for node in nodes if node.operation and not node.is_input]


def forget_losses(operations: Iterable[keras.Operation]) -> None:
    """Take back the losses that layers have added, as Keras does when they run once more."""
    for operation in operations:
        if isinstance(operation, keras.layers.Layer):
            operation._clear_losses()


def replay_graph(model: Model, inputs: Any, replace: Callable[[Any], Any]) -> Any:
    """Call a functional or sequential model's layers on other inputs, with some of them replaced.

    Args:
        model: has one graph; its layers and their weights are used again.
        inputs: symbolic tensors in the places of the model's own.
        replace: is given each layer once, and returns the one to call.

    Returns:
        The outputs, in the structure that the model returns.
    """
    chosen: dict[int, Any] = {}

    def choose(layer: Any) -> Any:
        if id(layer) not in chosen:
            chosen[id(layer)] = replace(layer)
        return chosen[id(layer)]

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        # The graph holds masks for layers that take them; what comes in their place may not.
        if kwargs.get("mask", ...) is None:
            del kwargs["mask"]
        return layer(*args, **kwargs)

    outputs = _graph(model)._run_through_graph(inputs, operation_fn=choose, call_fn=call)
    return functional.unpack_singleton(outputs)


def graph_inputs(model: Model) -> list[int]:
    return [id(tensor) for tensor in _graph(model).inputs]


def graph_input_specs(model: Model) -> list[keras.KerasTensor]:
    return list(_graph(model).inputs)


def graph_outputs(model: Model) -> list[int]:
    return [id(tensor) for tensor in _graph(model).outputs]


def graph_input_tensors(model: Model, x: Any) -> dict[int, Any]:
    """Return a batch of inputs by the identity of the tensors that they stand for."""
    graph = _graph(model)
    arrays = graph._standardize_inputs(x)
    return {id(tensor): array for tensor, array in zip(graph.inputs, arrays, strict=True)}


def pack_outputs(model: Model, tensors: dict[int, Any]) -> Any:
    """Return a model's outputs, found by identity, in the structure that it returns."""
    graph = _graph(model)
    outputs = [tensors[id(tensor)] for tensor in graph.outputs]
    packed = keras.tree.pack_sequence_as(graph._outputs_struct, outputs)
    return packed if own_graph(model) is None else functional.unpack_singleton(packed)


def with_training(training: bool) -> Callable[[Any], Callable[..., Any]]:
    """Return what hands `training` to the operations that ask for it, for `GraphCall.run`."""
    return partial(functional.operation_fn, training=training)


@contextlib.contextmanager
def replaced_graph_run(model: Model, run: Callable[..., None]) -> Iterator[None]:
    """Have a functional model run its calls by `run(tensors, wrap)` in the block.

    `tensors` holds the inputs by identity, and must hold the outputs afterwards; `wrap` is to be
    handed to `GraphCall.run`.
    """
    graph = _graph(model)

    def run_through_graph(inputs: Any, operation_fn: Any, call_fn: Any = None) -> Any:
        del call_fn
        flat = keras.tree.flatten(inputs)
        tensors = {id(x): y for x, y in zip(graph.inputs, flat, strict=True)}
        run(tensors, operation_fn)
        outputs = [tensors[id(x)] for x in graph.outputs]
        return keras.tree.pack_sequence_as(graph._outputs_struct, outputs)

    # Not through `setattr`: Keras would take it for a change of the model's state.
    vars(graph)["_run_through_graph"] = run_through_graph
    try:
        yield
    finally:
        del vars(graph)["_run_through_graph"]


def own_graph(model: Model) -> Function | None:
    """Return the graph that a functional or sequential model runs, or `None`."""
    graph = getattr(model, "_functional", None) or model
    return graph if isinstance(graph, Function) else None


def is_subclassed(model: Model) -> bool:
    """Return whether only the `call` of a model defines what it computes."""
    return own_graph(model) is None and not isinstance(model, keras.Sequential)


def set_traced_graph(model: Model, graph: Function | None) -> None:
    """Give a subclassed model a graph of what its `call` does; `None` takes it away."""
    ModelState.of(model).traced_graph = graph


def traced_graph(model: Model) -> Function | None:
    """Return the graph that a subclassed model was given, or `None`."""
    return ModelState.of(model).traced_graph


def _graph(model: Model) -> Any:
    return own_graph(model) or traced_graph(model)
