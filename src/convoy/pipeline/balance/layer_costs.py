"""Measured costs of a model's layers: time, memory, and the bytes that a cut would transfer."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import keras
import numpy as np
from convoy import cpu, keras_bridge
from convoy.engine.data.chunks import size
from convoy.keras_bridge import GraphCall, graph_input_specs, graph_inputs, graph_outputs
from convoy.pipeline.stages import Stage, Tensors, has_gradient, make_stages
from convoy.types import Arrays, PyTree

# In each turn a layer runs RUNS times, or until it has taken SECONDS; the fastest run counts.
TURNS, RUNS, SECONDS = 3, 4, 0.02
# Large enough that a transfer takes longer than its dispatch.
TRANSFERRED = 4 << 20

# Repeated in larger arrays: drawing random numbers takes longer than most layers do.
_RANDOM = np.random.default_rng(0).normal(size=1 << 16).astype(np.float32)

TensorShapes = dict[int, jax.ShapeDtypeStruct]
TimedFunction = Callable[..., PyTree]
Program = tuple[TimedFunction, Callable[[], list[PyTree]]]
"""A function to time, and a function that makes its arguments."""


@dataclass(frozen=True)
class LayerCost:
    """Cost of one call of a layer.

    Attributes:
        seconds: time of its forward and backward pass for one micro-batch.
        weights: bytes of its trainable variables.
        statistics: bytes of its other variables.
        activations: bytes of its outputs for one micro-batch.
        live: bytes of all tensors that are read after it, which a cut here would transfer.
    """

    seconds: float
    weights: int
    statistics: int
    activations: int
    live: int


def measure_layers(
    model: keras.Model, calls: Sequence[GraphCall], batch_size: int, device: jax.Device
) -> list[LayerCost]:
    """Compile and time every call of a model by itself, forward and backward.

    Calls of equal layers on equal shapes are timed once.

    Args:
        model: a functional or sequential model.
        calls: all calls of the model.
        batch_size: samples per micro-batch.
        device: device to run on.

    Raises:
        ValueError: if an input of the model has an unknown dimension.
    """
    model_inputs = input_shapes(model, batch_size)
    stages = make_stages(model, calls, list(range(len(calls))))
    shapes: TensorShapes = dict(model_inputs)
    idle = jax.device_put(np.float32(0), device)
    # The empty key is a program that computes nothing: its time is that of a dispatch.
    programs: dict[tuple, Program] = {(): (jax.jit(lambda x: x + 1), lambda: [idle])}
    keys: list[tuple] = []
    computed: list[TensorShapes] = []
    for call, stage in zip(calls, stages, strict=True):
        inputs = {tensor: shapes[tensor] for tensor in stage.inputs}
        outputs = output_shapes(stage, inputs)
        shapes |= outputs
        computed.append(outputs)
        keys.append(_key(call, stage, inputs))
        if keys[-1] not in programs:
            both = ForwardBackward(stage, inputs, outputs, set(model_inputs), device.platform)
            programs[keys[-1]] = both.run, partial(both.arguments, device)
    seconds = dict(zip(programs, time_in_turns(list(programs.values())), strict=True))
    seen: set[int] = set()
    costs = []
    live = live_after(model, calls)
    for key, stage, outputs, after in zip(keys, stages, computed, live, strict=True):
        new = [variable for variable in stage.variables if id(variable) not in seen]
        seen |= {id(variable) for variable in new}
        costs.append(
            LayerCost(
                max(0.0, seconds[key] - seconds[()]),
                variable_bytes([variable for variable in new if variable.trainable]),
                variable_bytes([variable for variable in new if not variable.trainable]),
                size(outputs),
                size([shapes[tensor] for tensor in after]),
            )
        )
    return costs


def transfer_seconds(devices: Sequence[jax.Device]) -> float:
    """Measure the time that one byte takes from a device to another; 0 if there is only one."""
    if len(devices) < 2:
        return 0.0
    first, second = devices[:2]
    data = jax.device_put(np.ones(TRANSFERRED // 4, np.float32), first)
    program: Program = (lambda array: jax.device_put(array, second), lambda: [data])
    # More often than a layer: a transfer is short, and counts for every cut.
    return min(time_in_turns([program] * TURNS)) / TRANSFERRED


def input_shapes(model: keras.Model, batch_size: int) -> TensorShapes:
    shapes = {}
    for number, tensor in zip(graph_inputs(model), graph_input_specs(model), strict=True):
        if None in tensor.shape[1:]:
            raise ValueError(
                f"Input {tensor.name!r} of {model.name!r} has shape {tuple(tensor.shape)}, so its "
                "layers cannot be timed. Give it a size, or cut the model by names of layers."
            )
        shape = (batch_size, *tensor.shape[1:])
        shapes[number] = jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(tensor.dtype))
    return shapes


def output_shapes(stage: Stage, inputs: TensorShapes) -> TensorShapes:
    return jax.eval_shape(stage_outputs(stage), inputs)


def stage_outputs(stage: Stage) -> Callable[[Tensors], Tensors]:
    """Return a function from the inputs of a stage to its outputs, with its variables' values."""
    trainable = keras_bridge.values(stage.trainable)
    non_trainable = keras_bridge.values(stage.non_trainable)
    return lambda inputs: stage.forward(trainable, non_trainable, inputs, training=True)[0]


def _key(call: GraphCall, stage: Stage, inputs: TensorShapes) -> tuple:
    settings = call.settings
    if settings is None:
        settings = f"only {id(call.operation)}"
    variables = [(tuple(v.shape), v.dtype, v.trainable) for v in stage.variables]
    return (settings, *((i.shape, i.dtype) for i in inputs.values()), *variables)


class ForwardBackward:
    """The forward and backward pass of a stage, compiled as one program and as two.

    Gradients are computed for everything but the model's own inputs.

    Args:
        stage: stage to run.
        inputs: shapes of its inputs.
        outputs: shapes of its outputs.
        model_inputs: the model's own inputs.
        platform: platform of the devices to run on.
    """

    def __init__(
        self,
        stage: Stage,
        inputs: TensorShapes,
        outputs: TensorShapes,
        model_inputs: set[int],
        platform: str,
    ) -> None:
        self._stage, self._inputs, self._outputs = stage, inputs, outputs
        self._model_inputs, self._platform = model_inputs, platform
        self.run = jax.jit(self._run)
        self.forward = jax.jit(self._forward)
        self.backward = jax.jit(lambda pullback, gradients: pullback(gradients))

    def arguments(self, device: jax.Device) -> list[PyTree]:
        """Return arguments for `run` and `forward` on a device; the last are the gradients."""

        def make(shapes: TensorShapes) -> Tensors:
            return {i: jax.device_put(_random(shape), device) for i, shape in shapes.items()}

        arrays = make(self._inputs)
        differentiable = {
            i: x
            for i, x in arrays.items()
            if i not in self._model_inputs and has_gradient(self._inputs[i])
        }
        fixed = {i: x for i, x in arrays.items() if i not in differentiable}
        gradients = make({i: s for i, s in self._outputs.items() if has_gradient(s)})
        trainable, non_trainable = (
            [jax.device_put(value, device) for value in keras_bridge.values(part)]
            for part in (self._stage.trainable, self._stage.non_trainable)
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
            out, new, _ = self._stage.forward(trainable, non_trainable, inputs, training=True)
            return {i: out[i] for i in gradients}, (out, new)

        fused: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if cpu.fuses(self._platform):
            fused = keras_bridge.replaced_operations(cpu.Fusion())
        with fused:
            _, pullback, results = jax.vjp(forward, trainable, differentiable, has_aux=True)
        return results, pullback


def time_in_turns(programs: Sequence[Program]) -> list[float]:
    """Return the shortest time of each program.

    Programs take turns, so that a machine that is busy for a second does not slow down a single
    program. Arguments are made anew in every turn, as a device may not hold those of all programs.
    """
    fastest = [math.inf] * len(programs)
    for turn in range(TURNS):
        for index, (function, make_arguments) in enumerate(programs):
            arguments = make_arguments()
            if turn == 0:  # compile it
                jax.block_until_ready(function(*arguments))
            fastest[index] = min(fastest[index], _fastest_run(function, arguments))
    return fastest


def _fastest_run(function: TimedFunction, arguments: list[PyTree]) -> float:
    fastest, total = math.inf, 0.0
    for _ in range(RUNS):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        seconds = time.perf_counter() - start
        fastest, total = min(fastest, seconds), total + seconds
        if total > SECONDS:
            break
    return fastest


def _random(shape: jax.ShapeDtypeStruct) -> np.ndarray:
    if has_gradient(shape):
        return np.resize(_RANDOM, shape.shape).astype(shape.dtype)
    return np.zeros(shape.shape, shape.dtype)


def variable_bytes(variables: Sequence[keras.Variable]) -> int:
    return size(keras_bridge.values(list(variables)))


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
