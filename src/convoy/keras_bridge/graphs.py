"""The graph of a functional model, as a list of calls.

A functional model is a `Function` of Keras: nodes, each of which records the call of an operation
(mostly a layer) on symbolic tensors. Neither the nodes nor their order is public.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any, Self

import keras
from convoy.keras_bridge.variables import Variables
from convoy.types import PyTree, Tensor, Tensors
from keras import Model
from keras.src.backend.common import masking
from keras.src.models import functional
from keras.src.ops.function import Function
from keras.src.ops.node import Node

# A graph, and its list of calls:
#
#     x -> [Dense] -> a -> [ReLU] -> b -> [Add] -> y        Dense(x), ReLU(a), Add(a, b)
#                     |                     ^
#                     +---------------------+
#
# Tensors are identified by `id()`: a symbolic tensor exists once in its graph. A nested model is
# one node of the outer graph. `nested_calls` replaces it with the calls of the inner graph. Inputs
# and outputs of the inner graph get the ids of the outer tensors; its other tensors get new
# negative numbers (see `NestedCall`).

get_keras_mask = masking.get_keras_mask
set_keras_mask = masking.set_keras_mask
_MARK = "_convoy_stage"
STATE = "_convoy"
FIXED = "_convoy_fixed_training"
"""Marks calls with a fixed `training` argument, regardless of the model's argument."""
Wrap = Callable[[keras.Operation], Callable[..., PyTree]]
"""A function that adds the arguments of the model's call, such as `training`, to an operation."""
# Keras has no hook for the creation of operations or nodes, so `marked_calls` replaces these two
# methods.
_plain_node = Node.__dict__["__init__"]
_plain_operation = keras.Operation.__dict__["__new__"]
_marking = threading.Lock()
_marks: list[Callable[[], int | None]] = []


@contextlib.contextmanager
def marked_calls(mark: Callable[[], int | None]) -> Iterator[None]:
    """Mark every operation that is created, and every call that is recorded, in the block.

    Args:
        mark: function that returns the mark for the current thread, or `None`.
    """

    def node(self: Node, *args: Any, **kwargs: Any) -> None:
        _plain_node(self, *args, **kwargs)
        vars(self)[_MARK] = mark()

    def operation(cls: type, *args: Any, **kwargs: Any) -> keras.Operation:
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
    """Return whether a layer of a model was created in a block of `marked_calls`."""
    layers = model._flatten_layers(include_self=False)
    return any(vars(layer).get(_MARK) is not None for layer in layers)


class GraphCall:
    """One call of an operation in the graph of a functional model.

    Args:
        node: Keras's record of the call.
        nesting: the call of the nested model that it is part of, if there is one.
    """

    def __init__(self, node: Node, nesting: NestedCall | None = None) -> None:
        self._node = node
        self._nesting = nesting
        self.operation: keras.Operation = node.operation
        self.name: str = node.operation.name
        self.inputs = tuple(id(tensor) for tensor in node.input_tensors)
        self.outputs = tuple(id(tensor) for tensor in node.outputs)
        self.input_shapes = tuple((tuple(t.shape), str(t.dtype)) for t in node.input_tensors)
        self.output_shapes = tuple((tuple(t.shape), str(t.dtype)) for t in node.outputs)
        self._own_inputs = self.inputs
        if nesting is not None:
            self.name = f"{nesting.name}/{self.name}"
            self.inputs = tuple(nesting.tensors[tensor] for tensor in self.inputs)
            self.outputs = tuple(nesting.tensors[tensor] for tensor in self.outputs)

    @property
    def mark(self) -> int | None:
        """The mark of the call, or else of the operation.

        For a call inside a nested model, the mark of the nested model's call has priority over
        both, and the mark of the nested model itself has the lowest priority.
        """
        around = self._nesting
        if around is not None and around.call_mark is not None:
            return around.call_mark
        own = vars(self._node).get(_MARK)
        own = own if own is not None else vars(self.operation).get(_MARK)
        return around.mark if own is None and around is not None else own

    @property
    def given(self) -> PyTree | None:
        """The structure of input tensors, if the call has them all in its first argument."""
        args = self._node.arguments.args
        flat = keras.tree.flatten(args[0]) if args else []
        return args[0] if [id(tensor) for tensor in flat] == list(self._own_inputs) else None

    @property
    def variables(self) -> Variables:
        operation = self.operation
        return list(operation.variables) if isinstance(operation, keras.layers.Layer) else []

    @property
    def settings(self) -> str | None:
        """A description that is equal for equal computations, or `None` if there is none."""
        try:
            config = dict(self.operation.get_config())
        except (NotImplementedError, TypeError, ValueError):
            return None
        config.pop("name", None)
        tensors = dict.fromkeys(self._own_inputs, "tensor")
        return f"{type(self.operation)} {config} {self._node.arguments.fill_in(tensors)}"

    def run(self, tensors: Tensors, wrap: Wrap) -> None:
        """Compute the outputs from the inputs among `tensors`, and add them.

        Args:
            tensors: values by the id of their symbolic tensor.
            wrap: function that adds the arguments of the model's call, such as `training`, to an
                operation.
        """
        own = tensors
        if self._nesting is not None:
            pairs = zip(self._own_inputs, self.inputs, strict=True)
            own = {inner: self._nesting.enter(inner, tensors[outer]) for inner, outer in pairs}
        args, kwargs = self._node.arguments.fill_in(own)
        if self._nesting is not None and self._nesting.training is not None:
            wrap = with_training(self._nesting.training)
        operation = self.operation if vars(self._node).get(FIXED) else wrap(self.operation)
        outputs = keras.tree.flatten(operation(*args, **kwargs))
        tensors.update(zip(self.outputs, outputs, strict=True))


class NestedCall:
    """One call of a nested model, which is replaced by its inner calls.

    Attributes:
        name: name of the nested model, prefixed with those of the models around it.
        tensors: outer numbers of the inner graph's tensors, by their ids.
        call_mark: mark of the call.
        mark: mark of the nested model itself.
        training: the argument `training`, if it is fixed for this call.
    """

    def __init__(self, call: GraphCall, fresh: Iterator[int]) -> None:
        graph = _graph(call.operation)
        around = call._nesting
        self.name = call.name
        self.call_mark = vars(call._node).get(_MARK)
        self.mark = vars(call.operation).get(_MARK)
        self.training: bool | None = None if around is None else around.training
        if vars(call._node).get(FIXED):
            self.training = bool(call._node.arguments.kwargs.get("training"))
        if around is not None:
            outer = around.call_mark
            self.call_mark = self.call_mark if outer is None else outer
            self.mark = around.mark if self.mark is None else self.mark
        # Numbers of the tensors, for a nested model called on outer tensor 7 with the result 9:
        #
        #     outer graph        7 ------- [nested] -------> 9
        #     inner graph        in -> [Dense] -> a -> [ReLU] -> out
        #     numbers            7               -1              9
        #
        # A second call of the same model gets other numbers for `a`.
        self._types = {id(tensor): tensor.dtype for tensor in graph.inputs}
        self.tensors = dict(zip(map(id, graph.inputs), call.inputs, strict=True))
        self.tensors |= dict(zip(map(id, graph.outputs), call.outputs, strict=True))
        for node in graph_nodes(graph):
            for tensor in node.outputs:
                if id(tensor) not in self.tensors:
                    self.tensors[id(tensor)] = next(fresh)

    def enter(self, inner: int, value: Tensor) -> Tensor:
        """Convert a value that enters the nested graph, as the nested model would."""
        dtype = self._types.get(inner)
        return value if dtype is None else keras.ops.convert_to_tensor(value, dtype=dtype)


def graph_calls(model: Model, *, into_nested: bool = False) -> list[GraphCall] | None:
    """Return the calls of a model in their order, or `None` if it has no graph.

    Args:
        model: functional or sequential model, or a subclassed model that was traced.
        into_nested: whether the calls inside of a nested model replace the call of that model.
    """
    graph = model_graph(model)
    if graph is None:
        return None
    return graph.nested_calls if into_nested else graph.calls


class ModelState:
    """The state that this package stores for a model; `PreparedModel` adds the engine's state.

    Attributes:
        traced_graph: the graph of a subclassed model's `call`, if it was traced.
        graph: the calls of the model's graph, cached by `model_graph`.
        methods: functions that run in place of methods of `keras.Model`; see `trainer`.
    """

    def __init__(self) -> None:
        self.traced_graph: Function | None = None
        self.graph: ModelGraph | None = None
        self.methods: dict[str, Callable[..., Any]] = {}

    @classmethod
    def of(cls, model: Model) -> Self:
        """Return the state of a model, creating it on first use."""
        state = vars(model).get(STATE)
        if state is None:
            # Not through `setattr`: Keras would track it as a part of the model.
            state = vars(model)[STATE] = cls()
        elif not isinstance(state, cls):
            # In place, because other code already holds the state: a subclass adds attributes to
            # it.
            vars(state).update(vars(cls()) | vars(state))
            state.__class__ = cls
        return state


class ModelGraph:
    """The calls of a model's graph, listed once and valid as long as the graph is the same.

    Attributes:
        function: the graph, as Keras keeps it or as it was traced.
        calls: calls in their order.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.calls = [GraphCall(node) for node in graph_nodes(function)]
        self._nested: list[tuple[Model, Function | None]] = []

    @cached_property
    def nested_calls(self) -> list[GraphCall]:
        """The calls, with those of nested models in place of their calls."""
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
            nesting = NestedCall(call, fresh)
            inner = [GraphCall(node, nesting) for node in graph_nodes(_graph(call.operation))]
            found += self._taken_apart(inner, fresh)
        return found


def model_graph(model: Model) -> ModelGraph | None:
    """Return the calls of a model's graph, or `None` if it has no graph.

    The graph is traversed on the first call, and again only after it has changed: when layers were
    added to a sequential model, or a subclassed model was traced.
    """
    state = ModelState.of(model)
    if state.graph is None or not state.graph.is_of(model):
        function = _graph(model)
        state.graph = None if function is None else ModelGraph(function)
    return state.graph


def _can_be_taken_apart(call: GraphCall) -> bool:
    """Return whether the call of a nested model can be replaced by the calls of its graph.

    It can if the model only runs its graph, and calls each layer once. A layer that is called twice
    outside of a model loses the loss that it added first.
    """
    nested = call.operation
    if not isinstance(nested, Model):
        return False
    graph = ModelState.of(nested).traced_graph
    if type(nested).call in _GRAPH_CALLS:
        graph = own_graph(nested)
    if graph is None:
        return False
    ranks = [len(tensor.shape) for tensor in graph.inputs]
    given = [len(shape) for shape, _ in call.input_shapes]
    outputs = [id(tensor) for tensor in graph.outputs]
    passed_on = set(outputs) & {id(tensor) for tensor in graph.inputs}
    operations = [id(node.operation) for node in graph_nodes(graph)]
    each_once = all(len(set(found)) == len(found) for found in (outputs, operations))
    return ranks == given and each_once and not passed_on


_GRAPH_CALLS = (functional.Functional.call, keras.Sequential.call)


def graph_nodes(graph: Function) -> list[Node]:
    """Return the calls of operations in a graph, in the order of execution."""
    # Keras counts depths from the outputs, so the inputs have the largest.
    depths = sorted(graph._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in graph._nodes_by_depth[depth]]
    return [node for node in nodes if node.operation and not node.is_input]


def clear_losses(operations: Iterable[keras.Operation]) -> None:
    """Clear the losses that layers have added, as Keras does before it calls them again."""
    for operation in operations:
        if isinstance(operation, keras.layers.Layer):
            operation._clear_losses()


def replay_graph(
    model: Model, inputs: PyTree, replace: Callable[[keras.Operation], keras.Operation]
) -> PyTree:
    """Call the layers of a functional or sequential model on other inputs, some of them replaced.

    Args:
        model: model whose layers, with their weights, are called.
        inputs: symbolic tensors in place of the model's own.
        replace: function of a layer that returns the layer to call; it is called once per layer.

    Returns:
        The outputs, in the structure that the model returns.
    """
    chosen: dict[int, keras.Operation] = {}

    def choose(layer: keras.Operation) -> keras.Operation:
        if id(layer) not in chosen:
            chosen[id(layer)] = replace(layer)
        return chosen[id(layer)]

    def call(layer: keras.Operation, *args: PyTree, **kwargs: Any) -> PyTree:
        # The graph holds masks for layers that take them; a replacement may not take one.
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


def graph_input_tensors(model: Model, x: PyTree) -> Tensors:
    """Return a batch of inputs by the ids of their symbolic tensors."""
    graph = _graph(model)
    arrays = graph._standardize_inputs(x)
    return {id(tensor): array for tensor, array in zip(graph.inputs, arrays, strict=True)}


def pack_outputs(model: Model, tensors: Tensors) -> PyTree:
    """Return a model's outputs, given by id, in the structure that the model returns."""
    graph = _graph(model)
    outputs = [tensors[id(tensor)] for tensor in graph.outputs]
    packed = keras.tree.pack_sequence_as(graph._outputs_struct, outputs)
    return packed if own_graph(model) is None else functional.unpack_singleton(packed)


def with_training(training: bool) -> Wrap:
    """Return the `wrap` of `GraphCall.run` that passes `training` to operations that take it."""
    return partial(functional.operation_fn, training=training)


@contextlib.contextmanager
def replaced_graph_run(model: Model, run: Callable[..., None]) -> Iterator[None]:
    """Replace the traversal of a functional model's graph in the block.

    Args:
        model: functional or sequential model.
        run: function of `tensors`, which holds the inputs by id and must hold the outputs
            afterwards, and of `wrap`, an argument of `GraphCall.run`.
    """
    graph = _graph(model)

    def run_through_graph(inputs: PyTree, operation_fn: Wrap, call_fn: object = None) -> PyTree:
        del call_fn
        flat = keras.tree.flatten(inputs)
        tensors = {id(x): y for x, y in zip(graph.inputs, flat, strict=True)}
        run(tensors, operation_fn)
        outputs = [tensors[id(x)] for x in graph.outputs]
        return keras.tree.pack_sequence_as(graph._outputs_struct, outputs)

    # Not through `setattr`: Keras would track it as a part of the model.
    vars(graph)["_run_through_graph"] = run_through_graph
    try:
        yield
    finally:
        del vars(graph)["_run_through_graph"]


def own_graph(model: Model) -> Function | None:
    """Return the graph of a functional or sequential model, or `None`."""
    # A functional model is a `Function`; a sequential one builds a functional model inside.
    graph = getattr(model, "_functional", None) or model
    return graph if isinstance(graph, Function) else None


def is_subclassed(model: Model) -> bool:
    """Return whether only the `call` of a model defines what it computes."""
    return own_graph(model) is None and not isinstance(model, keras.Sequential)


def set_traced_graph(model: Model, graph: Function | None) -> None:
    """Set the graph of a subclassed model's `call`; `None` removes it."""
    ModelState.of(model).traced_graph = graph


def _graph(model: Model) -> Any:
    return own_graph(model) or ModelState.of(model).traced_graph
