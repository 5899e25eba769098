"""The compiled programs of a model, and their cache."""

import contextlib
import math
import random
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import keras
import numpy as np
from convoy import cpu, distributed
from convoy.engine import progress
from convoy.engine.chunk_runner import ModelRunner, Outcome
from convoy.engine.compose import Composition, fetch_nothing
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.local_batch import local_batch_shapes
from convoy.engine.data.placement import (
    fetch_absent,
    spans_processes,
    to_host,
    to_local,
    tree_bytes,
    tree_shapes,
)
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER, Observer
from convoy.engine.state import Mode, State, Variables
from convoy.engine.step.constant_folding import FoldedStep, FoldedWeights
from convoy.engine.step.replicate import Roles
from convoy.engine.step.shard_state import StateShards
from convoy.engine.step.step import custom_step, prediction_step
from convoy.types import Arrays, PyTree, Shapes

MemoryStats = Any
"""`CompiledMemoryStats`, which JAX does not export."""


class _Program(NamedTuple):
    """A compiled program, the folded step that it runs if there is one, and its device calls."""

    run: jax.stages.Wrapped
    folded: FoldedStep | None
    lengths: progress.RunLengths


class Programs:
    """Runs chunks of data through a model, and compiles a program for every kind of chunk."""

    def __init__(
        self,
        model: keras.Model,
        config: ExecutionConfig,
        mode: Mode,
        weights: FoldedWeights,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        self.model = model
        self.observer = observer
        self.placement = config.placement
        self.mode = mode
        self.weights = weights
        self.variables = Variables(model, mode)
        self.shards = StateShards.of(config, self.variables)
        roles = Roles.of(model, self.variables)
        self.composition = Composition(model, config, mode, roles, self.shards, self.variables)
        self.max_steps = 1
        """Steps whose outputs one device call can hold; prediction only."""
        self._parameters = sum(math.prod(weight.shape) for weight in model.trainable_weights)
        self._compiled: dict[tuple, _Program] = {}
        self._folded: dict[tuple, FoldedStep | None] = {}
        self._output_bytes: dict[tuple, int] = {}
        self._running: list[Outcome] = []

    def run(self, chunk: Chunk) -> Outcome:
        """Run the steps of a chunk; the variables hold the result afterwards.

        Returns:
            The values of the metrics, or for prediction the outputs as host arrays.
        """
        # Limits the data in flight: at most one call waits for the device.
        while len(self._running) > 1:
            earlier = self._running.pop(0)
            progress.follow(earlier)
            jax.block_until_ready(earlier)
        state = self.variables.read()
        if self.placement.spans_processes:
            state = self._on_all_devices(state)
        program = self._program(chunk)
        constants, changing = self._divide(state, program.folded)
        steps = chunk.micro_batches // self.composition.config.accumulated(self.mode, chunk)
        new, outcome = self._run_calls(program, constants, changing, chunk, steps)
        if program.folded is not None:
            new = program.folded.join(state, new)
        elif self.mode != "train":
            new = new._replace(trainable=constants)
        self.variables.write(new)
        self._running.append(outcome)
        return outcome if self.mode != "predict" else _rows(outcome, chunk)

    def _run_calls(
        self, program: _Program, constants: Arrays, changing: State, chunk: Chunk, steps: int
    ) -> tuple[State, Outcome]:
        """Run the steps of a chunk, in one device call or, if they take long, in several.

        Returns:
            The new state, and the outcome of the last call.
        """
        is_divided = self.mode != "predict"  # whose outcome is the outputs of all steps
        work = chunk.batch * chunk.micro_batches * self._parameters
        per_step = chunk.micro_batches // steps * self.composition.replicas(chunk)
        per_step = max(1, per_step // distributed.count())
        done = 0
        while True:
            length = steps
            if is_divided:
                is_block = chunk.layout == "block"
                length = program.lengths.next(steps, steps - done, work, is_block=is_block)
            began, span = time.perf_counter(), np.array((done, done + length), np.int32)
            changing, outcome = program.run(constants, changing, chunk.source, span)
            done += length
            if done == steps:
                return changing, outcome
            progress.add(outcome, length * per_step)
            if not program.lengths.is_measured():
                progress.follow()
                jax.block_until_ready(outcome)
                program.lengths.note(time.perf_counter() - began)

    def _divide(self, state: State, folded: FoldedStep | None) -> tuple[Arrays, State]:
        """Return the arrays that a program only reads, and the state that it changes."""
        if self.mode == "train":
            return [], state
        if folded is None:
            # Weights that do not change are not donated, because other code may hold references to
            # them.
            return state.trainable, state._replace(trainable=[])
        constants, changing = folded.divide(state)
        return self.weights.get(folded, constants), changing

    def place(self) -> None:
        """Move the variables to the devices on which the programs run."""
        placement = self.placement
        if placement.mesh is None:
            return
        state = self.variables.read()
        if placement.spans_processes:
            state = values_of_first_process(state)
        self.variables.write(self._on_all_devices(state))

    def _on_all_devices(self, state: State) -> State:
        """Move values to their devices; callbacks set the same values in all processes."""
        if self.shards is not None:
            return self.shards.place(state)
        return State(*self.placement.replicate(tuple(state)))

    def memory(self, chunk: Chunk) -> MemoryStats:
        """Return XLA's own analysis of the memory that a chunk's program takes on a device."""
        program = self._program(chunk)
        constants, changing = self._divide(self.variables.read(), program.folded)
        span = np.array((0, 1), np.int32)
        lowered = program.run.lower(constants, changing, chunk.source, span)
        return lowered.compile().memory_analysis()

    def limit_outputs(self, example: Shapes, budget: int, steps_per_execution: int) -> int:
        """Set and return the number of steps whose outputs a prediction keeps on the device."""
        leaves, structure = jax.tree.flatten(example)
        key = (*leaves, structure)
        if key not in self._output_bytes:
            self._output_bytes[key] = output_bytes(self.model, self.variables.read(), example)
        fitting = budget // max(1, self._output_bytes[key])
        self.max_steps = max(1, min(steps_per_execution, fitting))
        return self.max_steps

    def _program(self, chunk: Chunk) -> _Program:
        fuses = cpu.fuses(self.placement.platform)
        folded = self._fold(chunk) if fuses and self.mode != "train" else None
        key = (chunk.layout, chunk.batch, chunk.sharded, self.max_steps, fuses, folded)
        if key not in self._compiled:
            program = self.composition.program(chunk, folded, self.max_steps)
            name = self.mode if chunk.sharded else f"{self.mode}, incomplete batch"
            # The data is the third argument.
            run = self.observer.program(name, program, varying=2)
            self._compiled[key] = _Program(run, folded, progress.RunLengths())
        return self._compiled[key]

    def _fold(self, chunk: Chunk) -> FoldedStep | None:
        batch = local_batch_shapes(chunk, self.composition.replicas(chunk))
        leaves, structure = jax.tree.flatten(batch)
        key = (*leaves, structure, chunk.sharded)
        if key not in self._folded:
            state = tree_shapes(self.variables.read())
            self._folded[key] = self.composition.fold(chunk, state)
        return self._folded[key]

    def still_fits(self) -> bool:
        """Return whether the model still has the variables that the programs were compiled for."""
        return self.variables.are_those_of(self.model)


def output_bytes(model: keras.Model, state: State, example: Shapes) -> int:
    """Return the bytes of the outputs for a batch of these shapes and types."""
    step = custom_step(model, "predict", fetch_nothing) or prediction_step(model, fetch_nothing)
    with _trace_for_shapes():
        _, outputs = jax.eval_shape(step, state, (example, 0))
    return tree_bytes(outputs)


@contextlib.contextmanager
def _trace_for_shapes() -> Iterator[None]:
    """Trace a step without effects, before the trace that is compiled.

    With it, layers warn only once, and draw from Python's generator as often as in stock Keras.
    """
    drawn_from = random.getstate()
    with warnings.catch_warnings(action="ignore"):
        yield
    random.setstate(drawn_from)


def values_of_first_process(state: State) -> State:
    """Return a state; values that are not on all devices yet are those of the first process."""
    values, structure = jax.tree.flatten(state)
    local = [index for index, value in enumerate(values) if not spans_processes(value)]
    shared = distributed.arrays_from_first([np.asarray(values[index]) for index in local])
    for index, value in zip(local, shared, strict=True):
        values[index] = value
    return jax.tree.unflatten(structure, values)


class ProgramCache:
    """The runners of a model in each mode, kept until the model is compiled again."""

    def __init__(self, model: keras.Model, config: ExecutionConfig, observer: Observer) -> None:
        self.model = model
        self.config = config
        self.observer = observer
        self._runners: dict[Mode, ModelRunner] = {}
        self._weights = FoldedWeights()

    def get(self, mode: Mode) -> ModelRunner:
        """Return the runner of a mode, with the model's variables on its devices."""
        if mode == "train":
            self._weights.kept.clear()  # the weights are about to change
        runner = self._runners.get(mode)
        if runner is None or not runner.still_fits():
            runner = self._runners[mode] = self._make(mode)
        runner.place()
        return runner

    def find(self, mode: Mode) -> ModelRunner | None:
        """Return the runner of a mode, if it was made already."""
        return self._runners.get(mode)

    def release(self) -> None:
        """Replace values that are shared by several processes with values of this process."""
        if self.config.placement.spans_processes:
            for runner in self._runners.values():
                values, structure = jax.tree.flatten(runner.variables.read())
                local = map(to_local, fetch_absent(values))
                runner.variables.write(jax.tree.unflatten(structure, local))

    def _make(self, mode: Mode) -> ModelRunner:
        if self.config.pipeline is not None:
            return self.config.pipeline.programs(self.model, self.config, mode, self.observer)
        return Programs(self.model, self.config, mode, self._weights, self.observer)


def _rows(outputs: PyTree, chunk: Chunk) -> PyTree:
    """Convert outputs per step to outputs per sample."""

    def rows(leaf: jax.Array) -> np.ndarray:
        steps = to_host(leaf)[: chunk.micro_batches]
        return steps.reshape(-1, *steps.shape[2:])

    return jax.tree.map(rows, outputs)
