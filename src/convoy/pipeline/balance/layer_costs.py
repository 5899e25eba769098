"""Costs of a model's layers: measured or estimated time, memory, and bytes sent at a split."""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import jax
import keras
import numpy as np
from convoy import cpu, keras_bridge
from convoy.engine import checks
from convoy.engine.data.placement import tree_bytes
from convoy.jaxpr import count_flops
from convoy.keras_bridge import (
    GraphCall,
    graph_input_specs,
    graph_input_tensors,
    graph_inputs,
    graph_outputs,
)
from convoy.pipeline.stages import Stage, has_gradient, make_stages
from convoy.progress_bar import tracked
from convoy.timing import run_seconds
from convoy.types import Arrays, Data, PyTree, Tensors

# The costs of a chain of calls a, b, c with a skip from a to c:
#
#     call             a          b          c
#     weights          of a       of b       of c        stay on the device of their stage
#     activations      of a       of b       of c        held for every micro-batch in flight
#     live             a          a, b       outputs     would be sent if the model were split here
#
# Every call is timed as a separate program, without XLA's fusion across calls. The times can be
# compared with each other, but their sum is not the time of a step.

# In each turn a layer runs RUNS times, or until it has taken SECONDS; the fastest run counts.
TURNS, RUNS, SECONDS = 3, 4, 0.02
# Large enough that a transfer takes longer than its dispatch.
TRANSFERRED = 4 << 20
# A backward pass computes two products for each product of the forward pass.
PASSES = 3

# Repeated to fill larger arrays, because drawing random numbers takes longer than most layers.
_RANDOM = np.random.default_rng(0).normal(size=1 << 16).astype(np.float32)

TensorShapes = dict[int, jax.ShapeDtypeStruct]
TimedFunction = Callable[..., PyTree]
Program = tuple[TimedFunction, Callable[[], list[PyTree]]]
"""A function to time, and a function that makes its arguments."""


@dataclass(frozen=True)
class LayerSizes:
    """Shapes and sizes of one call of a layer.

    Attributes:
        stage: the call as a separate stage.
        inputs: shapes of its inputs.
        outputs: shapes of its outputs.
        weights: bytes of its trainable variables, except those that an earlier call uses too.
        statistics: bytes of its other variables, likewise.
        activations: bytes of its outputs.
        live: bytes of all tensors that are read after it, which a split here would transfer.
    """

    stage: Stage
    inputs: TensorShapes
    outputs: TensorShapes
    weights: int
    statistics: int
    activations: int
    live: int


def layer_sizes(
    model: keras.Model, calls: Sequence[GraphCall], batch_size: int, sample: Data = None
) -> list[LayerSizes]:
    """Return the shapes and sizes of all calls of a model, for micro-batches of some samples.

    Args:
        model: a functional or sequential model.
        calls: all of its calls.
        batch_size: samples per micro-batch.
        sample: example inputs, for sizes that the model does not define.

    Raises:
        ValueError: if the size of an input is unknown.
    """
    shapes = input_shapes(model, batch_size, sample)
    seen: set[int] = set()
    layers = []
    stages = make_stages(model, calls, list(range(len(calls))))
    for stage, after in zip(stages, live_after(model, calls), strict=True):
        inputs = {tensor: shapes[tensor] for tensor in stage.inputs}
        outputs = output_shapes(stage, inputs)
        shapes |= outputs
        weights, statistics = (
            tree_bytes(keras_bridge.values([v for v in variables if id(v) not in seen]))
            for variables in (stage.trainable, stage.non_trainable)
        )
        seen |= {id(variable) for variable in stage.variables}
        live = tree_bytes([shapes[tensor] for tensor in after])
        layers.append(
            LayerSizes(stage, inputs, outputs, weights, statistics, tree_bytes(outputs), live)
        )
    return layers


def measure_layers(
    model: keras.Model, layers: Sequence[LayerSizes], device: jax.Device
) -> list[float]:
    """Compile and time every call of a model separately, forward and backward.

    Calls of equal layers on equal shapes are timed once.

    Args:
        model: a functional or sequential model.
        layers: shapes and sizes of all of its calls.
        device: device to run on.

    Returns:
        The seconds of each call, without those of a dispatch.
    """
    model_inputs = set(graph_inputs(model))
    idle = jax.device_put(np.float32(0), device)
    # The empty key is a program that computes nothing; it measures the time of a dispatch.
    programs: dict[tuple, Program] = {(): (jax.jit(lambda x: x + 1), lambda: [idle])}
    keys = list(map(_key, layers))
    for key, layer in zip(keys, layers, strict=True):
        if key not in programs:
            both = ForwardBackward(
                layer.stage, layer.inputs, layer.outputs, model_inputs, device.platform
            )
            programs[key] = both.run, partial(both.arguments, device)
    seconds = dict(zip(programs, time_in_turns(list(programs.values())), strict=True))
    return [max(0.0, seconds[key] - seconds[()]) for key in keys]


def estimate_seconds(layer: LayerSizes, flops: float, bandwidth: float) -> float:
    """Estimate the time of a call, forward and backward, on a device of some speed.

    It is the longer of two times: the time of its products, and the time of moving its bytes to and
    from memory (roofline model).

    Args:
        layer: shapes and sizes of the call.
        flops: floating-point operations per second of the device.
        bandwidth: bytes per second to and from its memory.
    """
    products = count_flops(jax.make_jaxpr(stage_outputs(layer.stage))(layer.inputs))
    moved = tree_bytes(layer.inputs) + layer.activations
    return PASSES * max(products / flops, moved / bandwidth)


def transfer_seconds(devices: Sequence[jax.Device]) -> float:
    """Measure the transfer time per byte between two devices; 0 if there is only one device."""
    if len(devices) < 2:
        return 0.0
    first, second = devices[:2]
    data = jax.device_put(np.ones(TRANSFERRED // 4, np.float32), first)
    program: Program = (lambda array: jax.device_put(array, second), lambda: [data])
    # Repeated more often than a layer, because a transfer is short and counts at every split.
    return min(time_in_turns([program] * TURNS)) / TRANSFERRED


def input_shapes(model: keras.Model, batch_size: int, sample: Data = None) -> TensorShapes:
    """Return the shapes of a micro-batch of inputs; `sample` gives sizes that are not defined."""
    shapes = {}
    given = {} if sample is None else sample_shapes(model, sample)
    for number, tensor in zip(graph_inputs(model), graph_input_specs(model), strict=True):
        sizes = given.get(number, tuple(tensor.shape[1:]))
        if None in sizes:
            raise ValueError(
                f"Input {tensor.name!r} of {model.name!r} has shape {tuple(tensor.shape)}, so its "
                "layers cannot be timed. Give it a fixed size, or split the model by names of "
                "layers."
            )
        shape = (batch_size, *sizes)
        shapes[number] = jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(tensor.dtype))
    return shapes


def sample_shapes(model: keras.Model, sample: Data) -> dict[int, tuple[int, ...]]:
    """Return the shapes of samples of a model's inputs, given inputs as `fit` takes them.

    Raises:
        ValueError: if the model does not take such inputs.
    """
    checks.check_inputs(model, sample)
    # Keras sorts the inputs and adds missing axes. It takes arrays, whose values do not matter.
    zeros = keras.tree.map_structure(
        lambda leaf: None if leaf is None else np.zeros((1, *leaf.shape[1:]), np.float32), sample
    )
    tensors = graph_input_tensors(model, zeros)
    return {number: tensor.shape[1:] for number, tensor in tensors.items() if tensor is not None}


def output_shapes(stage: Stage, inputs: TensorShapes) -> TensorShapes:
    return jax.eval_shape(stage_outputs(stage), inputs)


def stage_outputs(stage: Stage) -> Callable[[Tensors], Tensors]:
    """Return a function from the inputs of a stage to its outputs, with its variables' values."""
    trainable = keras_bridge.values(stage.trainable)
    non_trainable = keras_bridge.values(stage.non_trainable)
    return lambda inputs: stage.forward(trainable, non_trainable, inputs, training=True)[0]


def _key(layer: LayerSizes) -> tuple:
    (call,) = layer.stage.calls
    settings = call.settings
    if settings is None:
        settings = f"only {id(call.operation)}"
    variables = [(tuple(v.shape), v.dtype, v.trainable) for v in layer.stage.variables]
    return (settings, *((i.shape, i.dtype) for i in layer.inputs.values()), *variables)


@dataclass(eq=False)
class ForwardBackward:
    """The forward and backward pass of a stage, compiled as one program and as two.

    Gradients are computed for everything except the model's inputs.

    Attributes:
        stage: stage to run.
        inputs: shapes of its inputs.
        outputs: shapes of its outputs.
        model_inputs: the model's own inputs.
        platform: platform of the devices to run on.
    """

    stage: Stage
    inputs: TensorShapes
    outputs: TensorShapes
    model_inputs: set[int]
    platform: str

    def __post_init__(self) -> None:
        self.run = jax.jit(self._run)
        self.forward = jax.jit(self._forward)
        self.backward = jax.jit(lambda pullback, gradients: pullback(gradients))

    def arguments(self, device: jax.Device) -> list[PyTree]:
        """Return arguments for `run` and `forward` on a device; the last are the gradients."""

        def make(shapes: TensorShapes) -> Tensors:
            return {i: jax.device_put(_random(shape), device) for i, shape in shapes.items()}

        arrays = make(self.inputs)
        differentiable = {
            i: x
            for i, x in arrays.items()
            if i not in self.model_inputs and has_gradient(self.inputs[i])
        }
        fixed = {i: x for i, x in arrays.items() if i not in differentiable}
        gradients = make({i: s for i, s in self.outputs.items() if has_gradient(s)})
        trainable, non_trainable = (
            [jax.device_put(value, device) for value in keras_bridge.values(part)]
            for part in (self.stage.trainable, self.stage.non_trainable)
        )
        return [trainable, differentiable, non_trainable, fixed, gradients]

    def _run(self, *arguments: PyTree) -> PyTree:
        results, pullback = self._forward(*arguments)
        return results, pullback(arguments[-1])

    def _forward(
        self,
        trainable: Arrays,
        differentiable: Tensors,
        non_trainable: Arrays,
        fixed: Tensors,
        gradients: Tensors,
    ) -> tuple[PyTree, Callable[..., PyTree]]:
        def forward(trainable: Arrays, differentiable: Tensors) -> PyTree:
            inputs = fixed | differentiable
            out, new, _ = self.stage.forward(trainable, non_trainable, inputs, training=True)
            return {i: out[i] for i in gradients}, (out, new)

        fused: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if cpu.fuses(self.platform):
            fused = keras_bridge.replaced_operations(cpu.Fusion())
        with fused:
            _, pullback, results = jax.vjp(forward, trainable, differentiable, has_aux=True)
        return results, pullback


def time_in_turns(programs: Sequence[Program]) -> list[float]:
    """Return the shortest time of each program.

    Programs take turns, so that a short load on the machine does not affect a single program only.
    Arguments are created in every turn, because those of all programs may not fit on a device.
    """
    fastest = [math.inf] * len(programs)
    order = list(product(range(TURNS), range(len(programs))))
    for turn, index in tracked(order, "timing the layers"):
        function, make_arguments = programs[index]
        arguments = make_arguments()
        if turn == 0:  # compile it
            jax.block_until_ready(function(*arguments))
        times = run_seconds(partial(function, *arguments), runs=RUNS, seconds=SECONDS)
        fastest[index] = min(fastest[index], *times)
    return fastest


def _random(shape: jax.ShapeDtypeStruct) -> np.ndarray:
    if has_gradient(shape):
        return np.resize(_RANDOM, shape.shape).astype(shape.dtype)
    return np.zeros(shape.shape, shape.dtype)


def live_after(model: keras.Model, calls: Sequence[GraphCall]) -> list[list[int]]:
    """Return for every call the tensors that are computed up to it and read after it."""
    model_inputs = set(graph_inputs(model))
    wanted: dict[int, None] = dict.fromkeys(graph_outputs(model))
    after = []
    computed_later: set[int] = set()
    for call in reversed(calls):
        after.append([i for i in wanted if i not in model_inputs and i not in computed_later])
        computed_later |= set(call.outputs)
        wanted |= dict.fromkeys(call.inputs)
    return after[::-1]
