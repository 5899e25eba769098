"""What every layer of a model costs: time, memory, and what it would send on."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import cpu, keras_bridge
from convoy.engine.data.chunks import size
from convoy.keras_bridge import GraphCall, graph_input_specs, graph_inputs, graph_outputs
from convoy.pipeline.stage import Stage, stages_of

# In each turn a layer is run this often, or until it has taken this long; the fastest run counts.
TURNS, RUNS, SECONDS = 3, 4, 0.02
# Large enough that a transfer takes longer than its start.
TRANSFERRED = 4 << 20

# Repeated in larger arrays: drawing them takes longer than most layers do.
_NUMBERS = np.random.default_rng(0).normal(size=1 << 16).astype(np.float32)

Shapes = dict[int, jax.ShapeDtypeStruct]
Program = tuple[Callable[..., Any], Callable[[], list[Any]]]
"""What is timed, and what makes its arguments."""


@dataclass(frozen=True)
class Cost:
    """What a call of a layer takes.

    Attributes:
        seconds: forwards and backwards, for one micro-batch.
        weights: bytes of its trainable variables.
        statistics: bytes of its other variables.
        activations: bytes that it computes for one micro-batch.
        live: bytes that are read after it: what a cut here would send on.
    """

    seconds: float
    weights: int
    statistics: int
    activations: int
    live: int


def measure(
    model: keras.Model, calls: Sequence[GraphCall], batch_size: int, device: jax.Device
) -> list[Cost]:
    """Run every call of a model by itself, compiled, forwards and backwards.

    Calls of equal layers on equal shapes are timed once.

    Args:
        model: a functional or sequential model.
        calls: all of its calls.
        batch_size: samples of a micro-batch.
        device: where to run them.

    Raises:
        ValueError: if an input of the model has a size that is not known.
    """
    given = input_shapes(model, batch_size)
    stages = stages_of(model, calls, list(range(len(calls))))
    shapes: Shapes = dict(given)
    idle = jax.device_put(np.float32(0), device)
    programs: dict[tuple, Program] = {(): (jax.jit(lambda x: x + 1), lambda: [idle])}
    keys: list[tuple] = []
    computed: list[Shapes] = []
    for call, stage in zip(calls, stages, strict=True):
        inputs = {tensor: shapes[tensor] for tensor in stage.inputs}
        outputs = output_shapes(stage, inputs)
        shapes |= outputs
        computed.append(outputs)
        keys.append(_key(call, stage, inputs))
        if keys[-1] not in programs:
            both = Pass(stage, inputs, outputs, set(given), device.platform)
            programs[keys[-1]] = both.run, partial(both.arguments, device)
    taken = dict(zip(programs, in_turns(list(programs.values())), strict=True))
    seen: set[int] = set()
    costs = []
    live = live_after(model, calls)
    for key, stage, outputs, after in zip(keys, stages, computed, live, strict=True):
        new = [variable for variable in stage.variables if id(variable) not in seen]
        seen |= {id(variable) for variable in new}
        costs.append(
            Cost(
                max(0.0, taken[key] - taken[()]),
                _bytes([variable for variable in new if variable.trainable]),
                _bytes([variable for variable in new if not variable.trainable]),
                size(outputs),
                size([shapes[tensor] for tensor in after]),
            )
        )
    return costs


def transfer_seconds(devices: Sequence[jax.Device]) -> float:
    """Measure the seconds that a byte takes from a device to another; 0 if there is one only."""
    if len(devices) < 2:
        return 0.0
    first, second = devices[:2]
    data = jax.device_put(np.ones(TRANSFERRED // 4, np.float32), first)
    program: Program = (lambda array: jax.device_put(array, second), lambda: [data])
    # More often than a layer: it is short, and weighs on every cut.
    return min(in_turns([program] * TURNS)) / TRANSFERRED


def input_shapes(model: keras.Model, batch_size: int) -> Shapes:
    found = {}
    for number, tensor in zip(graph_inputs(model), graph_input_specs(model), strict=True):
        if None in tensor.shape[1:]:
            raise ValueError(
                f"Input {tensor.name!r} of {model.name!r} has shape {tuple(tensor.shape)}, so its "
                "layers cannot be timed. Give it a size, or cut the model by names of layers."
            )
        shape = (batch_size, *tensor.shape[1:])
        found[number] = jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(tensor.dtype))
    return found


def output_shapes(stage: Stage, inputs: Shapes) -> Shapes:
    trainable = keras_bridge.values(stage.trainable)
    rest = keras_bridge.values(stage.non_trainable)

    def outputs(inputs: dict[int, Any]) -> dict[int, Any]:
        return stage.forward(trainable, rest, inputs, training=True)[0]

    return jax.eval_shape(outputs, inputs)


def _key(call: GraphCall, stage: Stage, inputs: Shapes) -> tuple:
    settings = call.settings
    if settings is None:
        settings = f"only {id(call.operation)}"
    variables = [(tuple(v.shape), v.dtype, v.trainable) for v in stage.variables]
    return (settings, *((i.shape, i.dtype) for i in inputs.values()), *variables)


class Pass:
    """Some calls of a model forwards and backwards, as one program or as two.

    Gradients are computed for all but the model's own inputs.

    Args:
        stage: what is run.
        inputs: what it reads.
        outputs: what it computes.
        given: the model's own inputs.
        platform: of the devices that it will run on.
    """

    def __init__(
        self, stage: Stage, inputs: Shapes, outputs: Shapes, given: set[int], platform: str
    ) -> None:
        self._stage, self._inputs, self._outputs, self._given = stage, inputs, outputs, given
        self._platform = platform
        self.run = jax.jit(self._both)
        self.forward = jax.jit(self._forward)
        self.backward = jax.jit(lambda pull, gradients: pull(gradients))

    def arguments(self, device: jax.Device) -> list[Any]:
        """Return arguments for `run` and `forward`, on a device; the last one is gradients."""

        def make(shapes: Shapes) -> dict[int, Any]:
            return {i: jax.device_put(_random(shape), device) for i, shape in shapes.items()}

        arrays = make(self._inputs)
        moving = {i: x for i, x in arrays.items() if i not in self._given and _differentiable(x)}
        fixed = {i: x for i, x in arrays.items() if i not in moving}
        gradients = make({i: s for i, s in self._outputs.items() if _differentiable(s)})
        trainable, non_trainable = (
            [jax.device_put(value, device) for value in keras_bridge.values(part)]
            for part in (self._stage.trainable, self._stage.non_trainable)
        )
        return [trainable, moving, non_trainable, fixed, gradients]

    def _both(self, *arguments: Any) -> Any:
        passed, pull = self._forward(*arguments)
        return passed, pull(arguments[-1])

    def _forward(
        self, trainable: Any, moving: Any, non_trainable: Any, fixed: Any, gradients: Any
    ) -> Any:
        def forward(trainable: Any, moving: Any) -> Any:
            inputs = fixed | moving
            out, new, _ = self._stage.forward(trainable, non_trainable, inputs, training=True)
            return {i: out[i] for i in gradients}, (out, new)

        fused: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if cpu.fuses(self._platform):
            fused = keras_bridge.replaced_operations(cpu.Fusion())
        with fused:
            _, pull, passed = jax.vjp(forward, trainable, moving, has_aux=True)
        return passed, pull


def in_turns(programs: Sequence[Program]) -> list[float]:
    """Return the shortest time of each of some programs.

    They take turns, so that a machine that is busy for a second does not make one of them slow.
    Arguments are made anew in every turn: a device may not hold those of all programs.
    """
    fastest = [math.inf] * len(programs)
    for turn in range(TURNS):
        for place, (function, make_arguments) in enumerate(programs):
            arguments = make_arguments()
            if turn == 0:  # compile it
                jax.block_until_ready(function(*arguments))
            fastest[place] = min(fastest[place], _fastest(function, arguments))
    return fastest


def _fastest(function: Callable[..., Any], arguments: list[Any]) -> float:
    fastest, spent = math.inf, 0.0
    for _ in range(RUNS):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        taken = time.perf_counter() - start
        fastest, spent = min(fastest, taken), spent + taken
        if spent > SECONDS:
            break
    return fastest


def _random(shape: jax.ShapeDtypeStruct) -> np.ndarray:
    if _differentiable(shape):
        return np.resize(_NUMBERS, shape.shape).astype(shape.dtype)
    return np.zeros(shape.shape, shape.dtype)


def _differentiable(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


def _bytes(variables: Sequence[keras.Variable]) -> int:
    return size(keras_bridge.values(list(variables)))


def live_after(model: keras.Model, calls: Sequence[GraphCall]) -> list[list[int]]:
    """Return for every call what is computed up to it and read after it."""
    given = set(graph_inputs(model))
    wanted: dict[int, None] = dict.fromkeys(graph_outputs(model))
    after = []
    made_later: set[int] = set()
    for call in reversed(calls):
        after.append([i for i in wanted if i not in given and i not in made_later])
        made_later |= set(call.outputs)
        wanted |= dict.fromkeys(call.inputs)
    return after[::-1]
