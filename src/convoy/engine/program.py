"""The compiled programs of a whole model: one for each kind of chunk."""

import math
import time
from typing import Any, NamedTuple

import jax
import keras
import numpy as np
from convoy import cpu, distributed
from convoy.engine import progress
from convoy.engine.chunk_runner import Outcome
from convoy.engine.compiled_runner import CompiledRunner
from convoy.engine.compose import Composition
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.local_batch import local_batch_shapes
from convoy.engine.data.placement import spans_processes, to_host, tree_shapes
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER, Observer
from convoy.engine.state import Mode, State
from convoy.engine.step.constant_folding import FoldedStep, FoldedWeights
from convoy.engine.step.replicate import Roles
from convoy.engine.step.shard_state import StateShards
from convoy.types import Arrays, PyTree

# A program is compiled for one kind of chunk, and is called with:
#
#     constants   arrays that it only reads: in evaluation and prediction the weights, or the values
#                 that were folded from them; in training none. They are not donated.
#     changing    all other values of the model's variables. They are donated, so that their new
#                 values take the same memory.
#     source      the data of the chunk
#     span        the first step and the one after the last, as arrays: the same program runs any
#                 number of steps
#
#     Keras variables -- read --> state -- _divide --> constants, changing
#            ^                                               | program, once or several times
#            +---- write ---- new state <--- join -----------+
#
# Kinds of chunks differ in layout and in the shapes of a micro-batch. A model has few: an epoch
# has one, and a second one for an incomplete last batch.

MemoryStats = Any
"""`CompiledMemoryStats`, which JAX does not export."""


class _Program(NamedTuple):
    """A compiled program, the folded step that it runs if there is one, and its device calls."""

    run: jax.stages.Wrapped
    folded: FoldedStep | None
    lengths: progress.RunLengths


class WholeModelRunner(CompiledRunner):
    """Runs chunks through a model without stages; compiles a program for every kind of chunk.

    Args:
        model, config, mode, observer: see `CompiledRunner`.
        weights: values folded from the weights, which all modes share.
    """

    def __init__(
        self,
        model: keras.Model,
        config: ExecutionConfig,
        mode: Mode,
        weights: FoldedWeights,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        super().__init__(model, config, mode, observer)
        self.placement = config.placement
        self.weights = weights
        self.shards = StateShards.of(config, self.variables)
        roles = Roles.of(model, self.variables)
        self.composition = Composition(model, config, mode, roles, self.shards, self.variables)
        self._parameters = sum(math.prod(weight.shape) for weight in model.trainable_weights)
        self._compiled: dict[tuple, _Program] = {}
        self._folded: dict[tuple, FoldedStep | None] = {}

    def run_call(self, chunk: Chunk) -> Outcome:
        state = self.variables.read()
        if self.placement.spans_processes:
            # A callback may have assigned values that only this process has.
            state = self._on_all_devices(state)
        program = self._program(chunk)
        constants, changing = self._divide(state, program.folded)
        new, outcome = self._run_calls(program, constants, changing, chunk)
        if program.folded is not None:
            new = program.folded.join(state, new)
        elif self.mode != "train":
            new = new._replace(trainable=constants)
        self.variables.write(new)
        return outcome if self.mode != "predict" else _rows(outcome, chunk)

    def _run_calls(
        self, program: _Program, constants: Arrays, changing: State, chunk: Chunk
    ) -> tuple[State, Outcome]:
        """Run the program for the steps of a chunk, once or, if they take long, several times.

        Returns:
            The new state, and the outcome of the last run.
        """
        device_steps = self.config.device_steps(self.mode, chunk)
        work = chunk.micro_batch_samples * chunk.micro_batches * self._parameters
        # The outcome of a prediction is the outputs of all steps, so its last run is not enough.
        if self.mode == "predict" or device_steps == 1 or work < progress.SMALL_WORK:
            span = np.array((0, device_steps), np.int32)
            return program.run(constants, changing, chunk.source, span)
        # Progress counts the micro-batches of the replicas in this process.
        per_step = chunk.micro_batches // device_steps * self.composition.replicas(chunk)
        per_step = max(1, per_step // distributed.count())
        is_block = chunk.layout == "block"
        done = 0
        while True:
            length = program.lengths.next(device_steps, device_steps - done, is_block=is_block)
            began, span = time.perf_counter(), np.array((done, done + length), np.int32)
            changing, outcome = program.run(constants, changing, chunk.source, span)
            done += length
            if done == device_steps:
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

    def _program(self, chunk: Chunk) -> _Program:
        fuses = cpu.fuses(self.placement.platform)
        folded = self._fold(chunk) if fuses and self.mode != "train" else None
        # The shapes of the data are not part of the key: `jax.jit` compiles again for new shapes.
        kind = chunk.layout, chunk.micro_batch_samples, chunk.sharded
        key = (*kind, self.output_steps, fuses, folded)
        if key not in self._compiled:
            program = self.composition.program(chunk, folded, self.output_steps)
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


def values_of_first_process(state: State) -> State:
    """Return a state; values that are not on all devices yet are those of the first process."""
    values, structure = jax.tree.flatten(state)
    local = [index for index, value in enumerate(values) if not spans_processes(value)]
    shared = distributed.arrays_from_first([np.asarray(values[index]) for index in local])
    for index, value in zip(local, shared, strict=True):
        values[index] = value
    return jax.tree.unflatten(structure, values)


def _rows(outputs: PyTree, chunk: Chunk) -> PyTree:
    """Convert outputs per step to outputs per sample."""

    def rows(leaf: jax.Array) -> np.ndarray:
        steps = to_host(leaf)[: chunk.micro_batches]
        return steps.reshape(-1, *steps.shape[2:])

    return jax.tree.map(rows, outputs)
