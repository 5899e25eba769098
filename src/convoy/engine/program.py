"""The compiled programs of a model: which are there, and how they are run."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
from convoy import cpu, distributed, keras_bridge
from convoy.engine.chunk_runner import ModelRunner
from convoy.engine.compose import Composition, given
from convoy.engine.data.chunks import Chunk, local_batch_shapes, shapes, size
from convoy.engine.data.device_put import fetch_absent, is_elsewhere, to_host, to_own
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER, Observer
from convoy.engine.state import Mode, State, Variables
from convoy.engine.step.constant_folding import Hoisted, Prepared
from convoy.engine.step.replicate import Roles
from convoy.engine.step.shard_optimizer import Shards
from convoy.engine.step.step import prediction_step
from convoy.types import Shapes


class Programs:
    """Runs chunks of data through a model; compiles a program when a chunk needs another one."""

    def __init__(
        self,
        model: keras.Model,
        config: ExecutionConfig,
        mode: Mode,
        prepared: Prepared,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        self.model = model
        self.observer = observer
        self.placement = config.placement
        self.mode = mode
        self.prepared = prepared
        self.variables = Variables(model, mode)
        self.shards = Shards.of(config, self.variables) if mode == "train" else None
        roles = Roles.of(model, self.variables)
        self.composition = Composition(model, config, mode, roles, self.shards)
        self.compilation = keras_bridge.compilation(model)
        self.capacity = 1
        """Steps whose outputs one device call can hold; prediction only."""
        self._compiled: dict[tuple, tuple[Any, Hoisted | None]] = {}
        self._hoisted: dict[tuple, Hoisted | None] = {}
        self._output_bytes: dict[tuple, int] = {}
        self._running: list[Any] = []

    def run(self, chunk: Chunk) -> Any:
        """Run a chunk's steps; the variables then hold their outcome.

        Returns:
            The values of the metrics, or for prediction the outputs as host arrays.
        """
        self._wait_for_all_but_one()
        state = self._placed(self.variables.read())
        program, hoisted = self._program(chunk)
        kept, changing = self._divide(state, hoisted)
        count = np.int32(chunk.micro_batches // self.composition.accumulated(chunk))
        new, outcome = program(kept, changing, chunk.source, count)
        if hoisted is not None:
            new = hoisted.join(state, new)
        elif self.mode != "train":
            new = new._replace(trainable=kept)
        self.variables.write(new)
        self._running.append(outcome)
        return outcome if self.mode != "predict" else _rows(outcome, chunk)

    def _divide(self, state: State, hoisted: Hoisted | None) -> tuple[Any, State]:
        """Return what a program only reads, and what it is given to change."""
        if self.mode == "train":
            return [], state
        if hoisted is None:
            # Weights that do not change are not donated: others may hold them.
            return state.trainable, state._replace(trainable=[])
        constants, changing = hoisted.divide(state)
        return self.prepared.get(hoisted, constants), changing

    def place(self) -> None:
        """Move the variables to where the programs run."""
        if self.placement.mesh is None:
            return
        state = self.variables.read()
        if self.placement.spans_processes:
            state = agreed(state)
        placed = State(*self.placement.everywhere(tuple(state._replace(optimizer=[]))))
        if self.shards is not None:
            optimizer = self.shards.place(state.optimizer)
        else:
            optimizer = self.placement.everywhere(state.optimizer)
        self.variables.write(placed._replace(optimizer=optimizer))

    def _placed(self, state: State) -> State:
        """Move what a callback has set since the last device call, alike in all distributed."""
        if not self.placement.spans_processes:
            return state
        return jax.tree.map(lambda v: v if is_elsewhere(v) else self.placement.everywhere(v), state)

    def memory(self, chunk: Chunk) -> Any:
        """Return XLA's own analysis of the memory that a chunk's program takes on a device."""
        program, hoisted = self._program(chunk)
        kept, changing = self._divide(self.variables.read(), hoisted)
        return program.lower(kept, changing, chunk.source, np.int32(1)).compile().memory_analysis()

    def limit_outputs(self, example: Shapes, budget: int, steps_per_execution: int) -> int:
        """Choose how many steps' outputs a prediction keeps on the device, and return it."""
        leaves, structure = jax.tree.flatten(example)
        key = (*leaves, structure)
        if key not in self._output_bytes:
            self._output_bytes[key] = output_bytes(self.model, self.variables.read(), example)
        self.capacity = max(1, min(steps_per_execution, budget // max(1, self._output_bytes[key])))
        return self.capacity

    def _wait_for_all_but_one(self) -> None:
        # Bounds the data that is in flight; the device always has one call waiting.
        while len(self._running) > 1:
            jax.block_until_ready(self._running.pop(0))

    def _program(self, chunk: Chunk) -> tuple[Any, Hoisted | None]:
        fuses = cpu.fuses(self.placement.platform)
        hoisted = self._hoist(chunk) if fuses and self.mode != "train" else None
        key = (chunk.layout, chunk.batch, chunk.sharded, self.capacity, fuses, hoisted)
        if key not in self._compiled:
            program = self.composition.program(chunk, hoisted, self.capacity)
            name = self.mode if chunk.sharded else f"{self.mode}, rest"
            # The data is the third argument.
            self._compiled[key] = self.observer.program(name, program, varying=2), hoisted
        return self._compiled[key]

    def _hoist(self, chunk: Chunk) -> Hoisted | None:
        batch = local_batch_shapes(chunk, self.composition.replicas(chunk))
        leaves, structure = jax.tree.flatten(batch)
        key = (*leaves, structure, chunk.sharded)
        if key not in self._hoisted:
            state = shapes(self.variables.read())
            self._hoisted[key] = self.composition.hoist(chunk, state)
        return self._hoisted[key]

    def still_fits(self) -> bool:
        """Return whether the model has the variables that the programs were made for."""
        same = self.compilation is keras_bridge.compilation(self.model)
        return same and self.variables.are_those_of(self.model)


def output_bytes(model: keras.Model, state: State, example: Any) -> int:
    """Return the bytes of the outputs for a batch of these shapes and types."""
    _, outputs = jax.eval_shape(prediction_step(model, given), state, (example, 0))
    return size(outputs)


def agreed(state: State) -> State:
    """Take the first process's values of what is not yet shared by all distributed."""
    values, structure = jax.tree.flatten(state)
    own = [place for place, value in enumerate(values) if not is_elsewhere(value)]
    shared = distributed.arrays_from_first([np.asarray(values[place]) for place in own])
    for place, value in zip(own, shared, strict=True):
        values[place] = value
    return jax.tree.unflatten(structure, values)


class ProgramCache:
    """A model's programs, kept until it is compiled anew."""

    def __init__(self, model: keras.Model, config: ExecutionConfig, observer: Observer) -> None:
        self.model = model
        self.config = config
        self.observer = observer
        self._made: dict[Mode, ModelRunner] = {}
        self._prepared = Prepared()

    def get(self, mode: Mode) -> ModelRunner:
        if mode == "train":
            self._prepared.clear()  # the weights are about to change
        programs = self._made.get(mode)
        if programs is None or not programs.still_fits():
            programs = self._made[mode] = self._make(mode)
        programs.place()
        return programs

    def made(self, mode: Mode) -> ModelRunner | None:
        """Return the programs of a mode, if there are any."""
        return self._made.get(mode)

    def release(self) -> None:
        """Leave the variables to this process alone, where other processes shared them."""
        if self.config.placement.spans_processes:
            for programs in self._made.values():
                values, structure = jax.tree.flatten(programs.variables.read())
                own = map(to_own, fetch_absent(values))
                programs.variables.write(jax.tree.unflatten(structure, own))

    def _make(self, mode: Mode) -> ModelRunner:
        if self.config.pipeline is not None:
            return self.config.pipeline.programs(self.model, self.config, mode, self.observer)
        return Programs(self.model, self.config, mode, self._prepared, self.observer)


def _rows(outputs: Any, chunk: Chunk) -> Any:
    """Turn outputs by step into outputs by sample."""

    def rows(leaf: jax.Array) -> np.ndarray:
        steps = to_host(leaf)[: chunk.micro_batches]
        return steps.reshape(-1, *steps.shape[2:])

    return jax.tree.map(rows, outputs)
