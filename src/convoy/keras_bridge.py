"""The only file that reaches past Keras's public API.

Every private name of Keras that Convoy depends on is used here and nowhere else, and
`tests/test_keras_bridge.py` fails loudly when a Keras release changes one of them.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import warnings
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import keras
import numpy as np
from keras import Model
from keras.src.backend.common import global_state, masking
from keras.src.backend.jax import nn as jax_nn
from keras.src.backend.jax import numpy as jax_numpy
from keras.src.losses import loss as loss_module
from keras.src.models import functional
from keras.src.ops.node import Node
from keras.src.random import seed_generator
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils
from keras.src.trainers.data_adapters.array_data_adapter import (
    ArrayDataAdapter,
    can_convert_arrays,
)
from keras.src.trainers.data_adapters.grain_dataset_adapter import GrainDatasetAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.utils import python_utils, rng_utils

Variables = list[keras.Variable]

unpack = data_adapter_utils.unpack_x_y_sample_weight
train_validation_split = array_slicing.train_validation_split
is_array_data = can_convert_arrays
class_weight_to_sample_weights = data_adapter_utils.class_weight_to_sample_weights
get_keras_mask = masking.get_keras_mask
set_keras_mask = masking.set_keras_mask


# Making models ------------------------------------------------------------------------------


_scopes: list[Callable[[Model], None]] = []
_scopes_change = threading.Lock()
_plain_new = Model.__dict__["__new__"]


@contextlib.contextmanager
def watch_new_models(adopt: Callable[[Model], None]) -> Iterator[None]:
    """Call `adopt` on every `keras.Model` made in the block, before its `__init__` runs.

    `Model.__new__` is replaced while any thread is in such a block, and put back after the last.
    """

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        model = _plain_new.__func__(cls, *args, **kwargs)
        # `keras.Model(inputs, outputs)` comes through here twice: as Model, then as Functional.
        if type(model) is cls:
            adopt(model)
        return model

    with _scopes_change:
        _scopes.append(adopt)
        Model.__new__ = staticmethod(new)
    try:
        yield
    finally:
        with _scopes_change:
            _scopes.remove(adopt)
            if not _scopes:
                Model.__new__ = _plain_new


def overridden(model: Model, names: tuple[str, ...]) -> list[str]:
    """Return those of the trainer's methods that the model's class defines anew."""
    return [name for name in names if getattr(type(model), name) is not getattr(Model, name)]


# Operations ---------------------------------------------------------------------------------


@contextlib.contextmanager
def replaced_operations(replacements: Any) -> Iterator[None]:
    """Have layers that are traced in the block use other operations.

    Args:
        replacements: an object with methods of the names below, as many as it likes, each of
            which takes Keras's own function before that function's arguments.
    """
    places = {
        "moments": jax_nn,
        "batch_normalization": jax_nn,
        "relu": jax_nn,
        "add": jax_numpy,
        "reduce_values": loss_module,
    }
    places = {name: module for name, module in places.items() if hasattr(replacements, name)}
    # They are replaced for all threads, so one traces at a time.
    with _replacing:
        originals = {name: getattr(module, name) for name, module in places.items()}
        for name, module in places.items():
            setattr(module, name, partial(getattr(replacements, name), originals[name]))
        try:
            yield
        finally:
            for name, module in places.items():
                setattr(module, name, originals[name])


_replacing = threading.RLock()


# Graphs -------------------------------------------------------------------------------------


_MARK = "_convoy_stage"
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
        outputs = keras.tree.flatten(wrap(self.operation)(*args, **kwargs))
        tensors.update(zip(self.outputs, outputs, strict=True))


class Nesting:
    """One call of a model inside of another one, whose calls are taken apart.

    Attributes:
        name: of the nested model, with those around it before it.
        tensors: the numbers by which the nested graph's tensors are known outside of it.
        call_mark: what `marked_calls` said of the call.
        mark: what it said of the nested model, when that was made.
    """

    def __init__(self, call: GraphCall, fresh: Iterator[int]) -> None:
        graph = _graph(call.operation)
        around = call._nesting
        self.name = call.name
        self.call_mark = vars(call._node).get(_MARK)
        self.mark = vars(call.operation).get(_MARK)
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
    """Return the calls of a functional or sequential model in their order, or `None`.

    Args:
        model: any model.
        into_nested: whether calls of nested models stand in the place of the call of the whole.
    """
    graph = _graph(model)
    if graph is None:
        return None
    calls = [GraphCall(node) for node in _nodes(graph)]
    return _taken_apart(calls, itertools.count(-1, -1)) if into_nested else calls


def _taken_apart(calls: list[GraphCall], fresh: Iterator[int]) -> list[GraphCall]:
    found: list[GraphCall] = []
    for call in calls:
        if not _can_be_taken_apart(call):
            found.append(call)
            continue
        nesting = Nesting(call, fresh)
        inner = [GraphCall(node, nesting) for node in _nodes(_graph(call.operation))]
        found += _taken_apart(inner, fresh)
    return found


def _can_be_taken_apart(call: GraphCall) -> bool:
    """Say whether a call is nothing but that of a nested graph, which runs each layer once.

    A layer that runs again forgets the loss that it added before, unless a model is around both.
    """
    graph = _graph(call.operation) if isinstance(call.operation, Model) else None
    if graph is None or type(call.operation).call not in _GRAPH_CALLS:
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
    return functional.unpack_singleton(packed)


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


def _graph(model: Model) -> Any:
    graph = getattr(model, "_functional", None) or model
    return graph if hasattr(graph, "_nodes_by_depth") else None


# Variables ----------------------------------------------------------------------------------


def values(variables: Variables) -> list[jax.Array]:
    return [variable._value for variable in variables]


def assign(variables: Variables, new_values: list[jax.Array]) -> None:
    """Set variables without the conversion and the checks that `Variable.assign` makes."""
    for variable, value in zip(variables, new_values, strict=True):
        variable._value = value


def seed_variables(model: Model) -> set[int]:
    """Return the ids of the variables that are the state of a random number generator."""
    return {
        id(generator.state)
        for layer in model._flatten_layers()
        for generator in layer._seed_generators
    }


@contextlib.contextmanager
def held_in(dtype: str, variables: Variables) -> Iterator[None]:
    """Have what is traced in the block see variables of another type.

    An optimizer casts to the type of the variable that it updates, and a variable casts what is
    assigned to it. So this is how its update is computed in that type.
    """
    before = [variable._dtype for variable in variables]
    for variable in variables:
        variable._dtype = dtype
    try:
        yield
    finally:
        for variable, own in zip(variables, before, strict=True):
            variable._dtype = own


def updated_variables(optimizer: keras.optimizers.Optimizer) -> Variables:
    """Return the weights that an optimizer was built for, and those of the one that it wraps."""
    return list(optimizer._trainable_variables)


def random_seed() -> int | None:
    """Return the seed that `keras.utils.set_random_seed` was told last, without drawing from it."""
    return rng_utils.get_random_seed()


def global_seed() -> list[int] | None:
    """Return the state of the generator that unseeded random operations draw from, if it is."""
    generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    return None if generator is None else np.asarray(generator.state.value).tolist()


def set_global_seed(state: list[int] | None) -> None:
    if state is None:
        global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)
    else:
        seed_generator.global_seed_generator().state.assign(state)


# Callbacks that carry something from epoch to epoch -----------------------------------------


_CALLBACK_STATE: dict[type[keras.callbacks.Callback], tuple[str, ...]] = {
    keras.callbacks.History: ("history", "epoch"),
    keras.callbacks.EarlyStopping: (
        "wait",
        "stopped_epoch",
        "best",
        "best_epoch",
        "best_weights",
    ),
    keras.callbacks.ReduceLROnPlateau: ("best", "wait", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: (
        "best",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
}


def callback_state_names(callback: keras.callbacks.Callback) -> tuple[str, ...]:
    """Return the attributes in which one of Keras's own callbacks remembers earlier epochs."""
    for kind, names in _CALLBACK_STATE.items():
        if isinstance(callback, kind):
            return names
    return ()


# Precision ----------------------------------------------------------------------------------


def policies(model: Model) -> set[str]:
    """Return the names of the dtype policies of a model's layers."""
    layers = [
        layer
        for layer in model._flatten_layers(include_self=False)
        if not isinstance(layer, (Model, keras.layers.InputLayer))
    ]
    return {layer.dtype_policy.name for layer in layers or [model]}


# The step -----------------------------------------------------------------------------------


def loss_and_updates(model: Model) -> Callable[..., tuple[jax.Array, tuple]]:
    """Return the stateless forward pass and loss, to be differentiated by its first argument."""
    return model.compute_loss_and_updates


def update_metrics(
    model: Model,
    metrics: list[jax.Array],
    loss: jax.Array,
    x: Any,
    y: Any,
    y_pred: Any,
    weight: Any,
) -> tuple[dict[str, Any], list[jax.Array]]:
    """Update the state of all metrics by one batch; return the model's logs and the new state."""
    return model._update_metrics_variables(metrics, loss, x, y, y_pred, weight)


def compiled_loss(
    model: Model, metrics: list[jax.Array], y: Any, y_pred: Any, weight: Any
) -> tuple[jax.Array, list[jax.Array]]:
    """Compute the loss that was compiled, without what layers add, and the metrics' new state."""
    mapping = list(zip(model.metrics_variables, metrics, strict=True))
    with keras.StatelessScope(mapping) as scope:
        loss = model._compile_loss(y, y_pred, weight) if model._compile_loss is not None else None
    return (
        jax.numpy.float32(0) if loss is None else loss,
        [scope.get_current_value(variable) for variable in model.metrics_variables],
    )


def divided_optimizer(
    optimizer: keras.optimizers.Optimizer, groups: list[Variables], **changes: Any
) -> list[tuple[keras.optimizers.Optimizer, list[int]]]:
    """Return optimizers of the same kind for groups of weights; their variables hold no values.

    Returns:
        Each optimizer, and the places of its variables among those of the given one.
    """
    everything = updated_variables(optimizer)
    # Slots are named after their weights, whose paths may be equal in two nested models.
    names = {id(variable): f"weight{number}" for number, variable in enumerate(everything)}
    whole = _built_copy(optimizer, everything, names, changes)
    places = {variable.name: place for place, variable in enumerate(whole.variables)}
    copies = [_built_copy(optimizer, group, names, changes) for group in groups]
    return [(copy, [places[variable.name] for variable in copy.variables]) for copy in copies]


def _built_copy(
    optimizer: keras.optimizers.Optimizer,
    variables: Variables,
    names: dict[int, str],
    changes: dict[str, Any],
) -> keras.optimizers.Optimizer:
    config = optimizer.get_config()
    if not isinstance(getattr(optimizer, "optimizer", None), keras.optimizers.Optimizer):
        config |= changes
        rate = optimizer._learning_rate
        # The value of a variable is handed in with every update.
        is_variable = isinstance(rate, keras.Variable)
        serialize = keras.optimizers.schedules.serialize
        config["learning_rate"] = 0.0 if is_variable else serialize(rate)
    copy = type(optimizer).from_config(config)
    before = [variable._path for variable in variables]
    try:
        for variable in variables:
            variable._path = names[id(variable)]
        with keras.StatelessScope():  # which leaves out the values
            copy.build(variables)
    finally:
        for variable, path in zip(variables, before, strict=True):
            variable._path = path
    for variable in copy.variables:
        variable._value = None
    return copy


def metric_results(model: Model, metrics: list[jax.Array]) -> dict[str, Any]:
    """Compute the value of every metric from its state."""
    mapping = list(zip(model.metrics_variables, metrics, strict=True))
    with keras.StatelessScope(state_mapping=mapping):
        return model.get_metrics_result()


def call_training_argument(model: Model, training: bool) -> dict[str, bool]:
    return {"training": training} if model._call_has_training_arg else {}


def flat_metrics(model: Model, logs: dict[str, float]) -> Any:
    """Return logs as the list (or the one number) that `evaluate` gives by default."""
    return model._flatten_metrics_in_order(logs)


def compiled_losses(model: Model) -> list[tuple[tuple, Any]]:
    """Return a path into the targets and a loss for every output that has a loss."""
    if model._compile_loss is None or not model._compile_loss.built:
        return []
    return [(loss.path, loss.loss) for loss in model._compile_loss._flat_losses]


def output_structure(model: Model) -> Any:
    """Return the symbolic outputs in the structure that the model returns, if it is known."""
    return getattr(getattr(model, "_functional", None) or model, "_outputs_struct", None)


def unheard_metrics(model: Model) -> list[tuple[str, str]]:
    """Return the names of layers and metrics that only the layer's `call` can update."""
    if overridden(model, ("compute_metrics", "compute_loss")):
        return []
    return [
        (layer.name, metric.name)
        for layer in model._flatten_layers(include_self=False)
        if not isinstance(layer, Model)
        for metric in layer._metrics
    ]


def compilation(model: Model) -> object | None:
    """Return an object that is another one after each `model.compile`."""
    return model._loss_tracker


def track_loss_by(model: Model, metric: keras.metrics.Metric) -> None:
    """Have the loss of a compiled model reported by another metric than its mean."""
    # Not through `setattr`: Keras would count it among the metrics of layers too.
    vars(model)["_loss_tracker"] = metric


def initial_epoch(model: Model, default: int) -> int:
    """Return the epoch to start from: a callback such as `BackupAndRestore` may have set it."""
    return model._initial_epoch or default


def should_validate(model: Model, epoch: int, frequency: int | list[int]) -> bool:
    return model._should_eval(epoch, frequency)


# Data ---------------------------------------------------------------------------------------


class Batches(EpochIterator):
    """Keras's own walk over any kind of input, one batch of host arrays at a time.

    The order of batches, the draws from NumPy's generator, workers, and where an epoch ends are
    Keras's own, so they are the same as under stock Keras.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._length_known = self.num_batches is not None
        self._unread = 0
        self._is_read: Callable[[int], bool] | None = None

    def _get_iterator(self) -> Iterator[Any]:
        if self._is_read is not None:
            _leave_out_in_data_set(self.data_adapter, self._is_read)
        unread, self._unread = self._unread, 0
        if unread and isinstance(self.data_adapter, ArrayDataAdapter):
            return _skip_arrays(self.data_adapter, unread)
        return self.data_adapter.get_jax_iterator()

    @property
    def taken_before(self) -> int:
        """Batches that earlier epochs have taken of the walk that the next one goes on with."""
        goes_on = self.steps_per_epoch is not None and self._current_iterator is not None
        return self._steps_seen if goes_on else 0

    def seek(self, before: int, done: int) -> None:
        """Have the next epoch begin where its first `done` batches have been walked over.

        The batches are handed out, but hold nothing where the input can do without reading them.

        Args:
            before: batches that earlier epochs have taken of the walk.
            done: batches that the epoch itself has taken.
        """
        self._unread = before + done
        if isinstance(self.data_adapter, PyDatasetAdapter):
            _skip_in_data_set(self.data_adapter, self._unread)
        if self.steps_per_epoch is None:
            return
        self._current_iterator = iter(self._get_iterator())
        for _ in itertools.islice(self._current_iterator, before):
            pass
        self._steps_seen = before

    def read_only(self, is_read: Callable[[int], bool]) -> bool:
        """Have some batches of every epoch hold zeros, where the input can do without reading them.

        Args:
            is_read: says of the place of a batch in the epoch whether it is read.

        Returns:
            Whether that can be done.
        """
        adapter = self.data_adapter
        possible = isinstance(adapter, PyDatasetAdapter) and self.num_batches is not None
        if possible and self.steps_per_epoch is None:
            self._is_read = is_read
        return self._is_read is not None

    def drop_read_ahead(self) -> None:
        """Forget what workers have read beyond the one batch that building the model took.

        Keras hands it out again at the start of the first epoch. How much that is depends on how
        fast the workers are, so it can not be the same in a run that goes on.
        """
        enqueuer = getattr(self.data_adapter, "enqueuer", None)
        if enqueuer is not None and self.data_adapter.num_batches is not None:
            while not enqueuer.ready_queue.empty():
                enqueuer.ready_queue.get_nowait()

    @property
    def why_not_resumable(self) -> str | None:
        """What stands in the way of an exact `seek`, if something does."""
        adapter = self.data_adapter
        if isinstance(adapter, ArrayDataAdapter | GrainDatasetAdapter):
            return None
        if not isinstance(adapter, PyDatasetAdapter):
            return "its order is its own affair, and cannot be asked for"
        dataset = adapter.py_dataset
        if adapter.enqueuer and self.steps_per_epoch and dataset.num_batches is not None:
            return "with workers and steps_per_epoch, Keras begins its order anew in mid-epoch"
        hooks = [
            name
            for name in ("on_epoch_begin", "on_epoch_end")
            if getattr(type(dataset), name) is not getattr(keras.utils.PyDataset, name)
        ]
        if hooks and not _tells_state(dataset):
            return f"{hooks[0]}() may change it, and it has no get_state() and set_state()"
        return None

    @property
    def kind(self) -> str:
        """What the user passed, for messages."""
        adapter = self.data_adapter
        is_dataset = isinstance(adapter, PyDatasetAdapter)
        return type(adapter.py_dataset if is_dataset else adapter).__name__.removesuffix("Adapter")

    @property
    def samples(self) -> int | None:
        """Samples in the input; only where the batch size is ours."""
        return self.data_adapter._num_samples if self.batch_size_is_ours else None

    @property
    def state(self) -> Any:
        """What a `PyDataset` says of its own state, if it can tell."""
        dataset: Any = getattr(self.data_adapter, "py_dataset", None)
        return dataset.get_state() if _tells_state(dataset) else None

    def set_state(self, state: Any) -> None:
        dataset: Any = getattr(self.data_adapter, "py_dataset", None)
        if state is not None and _tells_state(dataset):
            dataset.set_state(state)

    def _interrupted_warning(self) -> None:
        # An input of unknown length that ends for the first time has done nothing wrong.
        if self.steps_per_epoch or self._length_known:
            super()._interrupted_warning()
        self._length_known = True

    def __next__(self) -> Any:
        _, _, (batch,) = super().__next__()
        return batch

    def build(self, model: Model, mode: str) -> None:
        """Create those variables of model, metrics, loss and optimizer that do not exist yet.

        The input is told of the end of an epoch where stock Keras tells it so.
        """
        if mode == "predict":
            if not all(layer.built for layer in model._flatten_layers()):
                x, _, _ = unpack(next(iter(self)))
                build_for_prediction(model, x)
                self.reset()
            return
        batch = next(iter(self)) if self._something_is_unbuilt(model) else None
        model._symbolic_build(data_batch=batch)
        if mode == "train":
            self.reset()

    @staticmethod
    def _something_is_unbuilt(model: Model) -> bool:
        parts = [*model._flatten_layers(), model._compile_metrics, model._compile_loss]
        return not all(part is None or part.built for part in parts)

    @property
    def arrays(self) -> Any | None:
        """The whole input as a structure of host arrays, or `None` if it is not of that kind."""
        if not isinstance(self.data_adapter, ArrayDataAdapter):
            return None
        sliceable = array_slicing.convert_to_sliceable(self.data_adapter._inputs, "jax")
        leaves = keras.tree.flatten(sliceable)
        if any(
            type(leaf) is not array_slicing.NumpySliceable for leaf in leaves if leaf is not None
        ):
            return None  # sparse and ragged ones, data frames: sliced batch by batch on the host
        return keras.tree.map_structure(lambda leaf: leaf and leaf.array, sliceable)

    @property
    def batch_size_is_ours(self) -> bool:
        """Whether `batch_size` cuts the batches; other inputs come in batches of their own."""
        return isinstance(self.data_adapter, ArrayDataAdapter)

    @property
    def whole_batches(self) -> int | None:
        """Batches of an epoch that are as large as all others, if that is known."""
        known = self.num_batches
        if known is None or self.steps_per_epoch or isinstance(self.data_adapter, PyDatasetAdapter):
            return known  # whether a data set has a smaller batch, it does not say
        return known - 1 if self.data_adapter.has_partial_batch else known

    @property
    def shuffle(self) -> bool | str:
        return self.data_adapter._shuffle

    @property
    def batch_size(self) -> int:
        """Samples in a batch; only where it is ours."""
        return int(self.data_adapter.batch_size)


def _tells_state(dataset: Any) -> bool:
    return all(callable(getattr(dataset, name, None)) for name in ("get_state", "set_state"))


def _skip_in_data_set(adapter: PyDatasetAdapter, count: int) -> None:
    """Have the first batches of the coming epoch hold nothing."""
    order = _order_to_come(adapter) or range(count)
    _use_data_set(adapter, _Unread(adapter.py_dataset, frozenset(order[:count])))


def _leave_out_in_data_set(adapter: PyDatasetAdapter, is_read: Callable[[int], bool]) -> None:
    """Have some batches of the coming epoch hold zeros."""
    if not isinstance(adapter.py_dataset, _Shared):
        _use_data_set(adapter, _Shared(adapter.py_dataset))
    places = enumerate(_order_to_come(adapter))
    adapter.py_dataset.unread = frozenset(index for at, index in places if not is_read(at))


def _order_to_come(adapter: PyDatasetAdapter) -> list[int]:
    """Return the order that the adapter is about to draw; nothing if the data set has no end."""
    length = adapter.py_dataset.num_batches
    order = list(range(length or 0))
    if adapter.shuffle:
        # Without drawing from the generator itself.
        generator = random.Random()
        generator.setstate(random.getstate())
        generator.shuffle(order)
    return order


def _use_data_set(adapter: PyDatasetAdapter, dataset: keras.utils.PyDataset) -> None:
    adapter.py_dataset = dataset
    if adapter.enqueuer:
        adapter.enqueuer.py_dataset = dataset


def _skip_arrays(adapter: ArrayDataAdapter, count: int) -> Iterator[Any]:
    """Walk over arrays whose first batches hold nothing."""
    skipping = True

    def batch(sliceable: Any, indices: Any = None) -> Any:
        return None if skipping else sliceable.convert_to_jax_compatible(sliceable[indices])

    inputs = array_slicing.convert_to_sliceable(adapter._inputs, "jax")
    # A generator: it slices a batch, or does not, when it is asked for that batch.
    for number, sliced in enumerate(adapter._get_iterator(batch, inputs), start=1):
        skipping = number < count
        yield sliced


class _Unread(keras.utils.PyDataset):
    """A data set some batches of which are not read in its first epoch."""

    def __init__(self, dataset: keras.utils.PyDataset, unread: Container[int]) -> None:
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self.dataset = dataset
        self.unread = unread

    @property
    def num_batches(self) -> int | None:
        return self.dataset.num_batches

    def __getitem__(self, index: int) -> Any:
        return (np.zeros(0),) if index in self.unread else self.dataset[index]

    def on_epoch_begin(self) -> None:
        self.dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.unread = ()
        self.dataset.on_epoch_end()

    def __getattr__(self, name: str) -> Any:
        if name in ("get_state", "set_state"):
            return getattr(self.dataset, name)
        raise AttributeError(name)


class _Shared(_Unread):
    """A data set some batches of which another process reads; here they hold zeros."""

    def __init__(self, dataset: keras.utils.PyDataset) -> None:
        super().__init__(dataset, ())
        self._zeros = keras.tree.map_structure(np.zeros_like, dataset[0])

    def __getitem__(self, index: int) -> Any:
        return self._zeros if index in self.unread else self.dataset[index]

    def on_epoch_end(self) -> None:
        self.dataset.on_epoch_end()


def build_for_prediction(model: Model, x: Any) -> None:
    """Create the variables of a model that has not been called yet."""
    if not all(layer.built for layer in model._flatten_layers()):
        with keras.StatelessScope():
            model(x)


def without_files(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Leave out Keras's own callbacks that write files: one process of a run does that."""
    return [
        c for c in keras.tree.flatten(callbacks) if c is not None and not isinstance(c, _WRITERS)
    ]


_WRITERS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


class Callbacks(keras.callbacks.CallbackList):
    """Keras's list of callbacks, which leaves waiting for the device to another thread.

    Keras starts as many threads as it likes, and a progress bar may then run backwards. One is
    enough, and keeps the order; and none is woken up where nobody listens.
    """

    _executor: ThreadPoolExecutor | None

    def _on_begin(self) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1)
        super()._on_begin()
        self._train_heard = self._heard("on_train_batch_end", "on_batch_end")
        self._test_heard = self._heard("on_test_batch_end")
        self._predict_heard = self._heard("on_predict_batch_end")

    def _heard(self, *names: str) -> bool:
        return any(
            not python_utils.is_default(getattr(callback, name))
            for callback in self.callbacks
            for name in names
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._train_heard:
            super().on_train_batch_end(batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._test_heard:
            super().on_test_batch_end(batch, logs)

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._predict_heard:
            super().on_predict_batch_end(batch, logs)


def python_logs(logs: dict[str, Any]) -> dict[str, float]:
    """Turn logs into plain numbers, which waits for the device."""
    return python_utils.pythonify_logs(logs)


def build_for_batch(model: Model, batch: Any) -> None:
    model._symbolic_build(data_batch=batch)


def limit_epochs(epochs: int) -> int:
    """Apply `keras.config.set_max_epochs`."""
    limit = keras.config.max_epochs()
    if limit and limit < epochs:
        warnings.warn(f"Limiting epochs to {limit}", stacklevel=3)
        return limit
    return epochs
