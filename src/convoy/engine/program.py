"""The compiled programs of a model: what the wrappers of the step make together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax
import keras
import numpy as np
from convoy import cpu, keras_bridge
from convoy.engine.feed import Chunk, Placement, fetcher, shapes, share_shapes, size
from convoy.engine.hoist import Hoisted, Prepared
from convoy.engine.loop import collect, loop
from convoy.engine.replicate import (
    AXIS,
    Roles,
    over_replicas,
    replicate,
    replicate_forward,
    replicate_gradients,
)
from convoy.engine.state import Mode, State, Variables
from convoy.engine.step import (
    Forward,
    Logs,
    Step,
    evaluation_step,
    gradient_step,
    prediction_step,
    results,
)
from convoy.engine.update import update


class Programs:
    """Runs chunks of data through a model; compiles a program when a chunk needs another one."""

    def __init__(
        self, model: keras.Model, placement: Placement, mode: Mode, prepared: Prepared
    ) -> None:
        self.model = model
        self.placement = placement
        self.mode = mode
        self.prepared = prepared
        self.variables = Variables(model, mode)
        self.roles = Roles.of(model, self.variables)
        self.compilation = keras_bridge.compilation(model)
        self.capacity = 1
        """Steps whose outputs one device call can hold; prediction only."""
        self._compiled: dict[tuple, tuple[Callable[..., tuple[State, Any]], Hoisted | None]] = {}
        self._hoisted: dict[tuple, Hoisted | None] = {}
        self._output_bytes: dict[tuple, int] = {}
        self._running: list[Any] = []

    def run(self, chunk: Chunk) -> Any:
        """Run a chunk's steps; the variables then hold their outcome.

        Returns:
            The values of the metrics, or for prediction the outputs as host arrays.
        """
        self._wait_for_all_but_one()
        state = self.variables.read()
        program, hoisted = self._program(chunk)
        # Weights that do not change are not donated: others may hold them.
        kept = state.trainable if self.mode != "train" else []
        changing = state if self.mode == "train" else state._replace(trainable=[])
        if hoisted is not None:
            constants, changing = hoisted.divide(state)
            kept = self.prepared.get(hoisted, constants)
        new, outcome = program(kept, changing, chunk.source, np.int32(chunk.count))
        if hoisted is not None:
            new = hoisted.join(state, new)
        elif self.mode != "train":
            new = new._replace(trainable=kept)
        self.variables.write(new)
        self._running.append(outcome)
        return outcome if self.mode != "predict" else _rows(outcome, chunk)

    def place(self) -> None:
        """Move the variables to where the programs run."""
        if self.placement.mesh is not None:
            self.variables.write(State(*self.placement.everywhere(tuple(self.variables.read()))))

    def limit_outputs(self, example: Any, budget: int, most: int) -> int:
        """Choose how many steps' outputs a prediction keeps on the device, and return it."""
        leaves, structure = jax.tree.flatten(example)
        key = (*leaves, structure)
        if key not in self._output_bytes:
            step = prediction_step(self.model)
            _, outputs = jax.eval_shape(step, self.variables.read(), example)
            self._output_bytes[key] = size(outputs)
        self.capacity = max(1, min(most, budget // max(1, self._output_bytes[key])))
        return self.capacity

    def _wait_for_all_but_one(self) -> None:
        # Bounds the data that is in flight; the device always has one call waiting.
        while len(self._running) > 1:
            jax.block_until_ready(self._running.pop(0))

    def _program(self, chunk: Chunk) -> tuple[Callable[..., tuple[State, Any]], Hoisted | None]:
        fuses = cpu.fuses(self.placement.platform)
        hoisted = self._hoist(chunk) if fuses and self.mode != "train" else None
        key = (chunk.layout, chunk.batch, chunk.spread, self.capacity, fuses, hoisted)
        if key not in self._compiled:
            self._compiled[key] = self._build(chunk, hoisted), hoisted
        return self._compiled[key]

    def _hoist(self, chunk: Chunk) -> Hoisted | None:
        """Take out of the step what follows from weights alone; `None` if it must stay whole."""
        spread = self.placement.mesh is not None and chunk.spread
        batch = share_shapes(chunk, self.placement.replicas if spread else 1)
        leaves, structure = jax.tree.flatten(batch)
        key = (*leaves, structure)
        if key not in self._hoisted:
            step = prediction_step if self.mode == "predict" else evaluation_step
            self._hoisted[key] = Hoisted.of(
                step(self.model),
                shapes(self.variables.read()),
                batch,
                self.roles,
                cpu.fuse,
                self.placement.mesh,
            )
        return self._hoisted[key]

    def _build(self, chunk: Chunk, hoisted: Hoisted | None) -> Callable[..., tuple[State, Any]]:
        mesh = self.placement.mesh
        spread = mesh is not None and chunk.spread
        fetch = fetcher(chunk, self.placement.replicas if spread else 1)
        run: Callable[..., tuple[State, Any]]
        if self.mode == "predict":
            run = collect(self._forward(spread, hoisted), fetch, self.capacity)
        else:
            run = self._with_results(loop(self._step(spread, hoisted), fetch))
        if mesh is not None:
            divided, everywhere = _specs()
            source = divided if spread and chunk.layout == "block" else everywhere
            result = divided if spread and self.mode == "predict" else everywhere
            run = over_replicas(run, mesh, source, result)
        program: Callable[..., Any] = partial(_run_whole, run, self.mode)
        if self.mode == "train" and cpu.fuses(self.placement.platform):
            program = _fused(program)
        return jax.jit(program, donate_argnums=1)

    def _forward(self, spread: bool, hoisted: Hoisted | None) -> Forward:
        step = hoisted.step if hoisted else prediction_step(self.model)
        roles = hoisted.roles if hoisted else self.roles
        return replicate_forward(step, roles) if spread else step

    def _step(self, spread: bool, hoisted: Hoisted | None) -> Step:
        if self.mode == "evaluate":
            step = hoisted.step if hoisted else evaluation_step(self.model)
            roles = hoisted.roles if hoisted else self.roles
            return replicate(step, roles) if spread else step
        gradients = gradient_step(self.model)
        if spread:
            gradients = replicate_gradients(gradients, self.roles)
        return update(gradients, self.model.optimizer)

    def _with_results(
        self, run: Callable[..., tuple[State, Logs]]
    ) -> Callable[..., tuple[State, Logs]]:
        def with_results(state: State, source: Any, count: jax.Array) -> tuple[State, Logs]:
            state, logs = run(state, source, count)
            return state, results(self.model, state, logs)

        return with_results

    def still_fits(self) -> bool:
        """Return whether the model has the variables that the programs were made for."""
        now = Variables(self.model, self.mode).parts
        return self.compilation is keras_bridge.compilation(self.model) and all(
            len(then) == len(part) and all(a is b for a, b in zip(then, part, strict=True))
            for then, part in zip(self.variables.parts, now, strict=True)
        )


class ProgramCache:
    """A model's programs, kept until it is compiled anew."""

    def __init__(self, model: keras.Model, placement: Placement) -> None:
        self.model = model
        self.placement = placement
        self._made: dict[Mode, Programs] = {}
        self._prepared = Prepared()

    def get(self, mode: Mode) -> Programs:
        if mode == "train":
            self._prepared.clear()  # the weights are about to change
        programs = self._made.get(mode)
        if programs is None or not programs.still_fits():
            programs = self._made[mode] = Programs(self.model, self.placement, mode, self._prepared)
        programs.place()
        return programs


def _fused(program: Callable[..., Any]) -> Callable[..., Any]:
    """Trace a program with the CPU's own batch normalisation."""

    @wraps(_run_whole)
    def traced(*args: Any) -> Any:
        with keras_bridge.replaced_operations(cpu.Fusion()):
            return program(*args)

    return traced


def _rows(outputs: Any, chunk: Chunk) -> Any:
    """Turn outputs by step into outputs by sample."""

    def rows(leaf: jax.Array) -> np.ndarray:
        steps = np.asarray(leaf)[: chunk.count]
        return steps.reshape(-1, *steps.shape[2:])

    return jax.tree.map(rows, outputs)


def _run_whole(
    run: Callable[..., tuple[State, Any]],
    mode: Mode,
    kept: list[jax.Array],
    state: State,
    source: Any,
    count: jax.Array,
) -> tuple[State, Any]:
    if mode != "train":
        state = state._replace(trainable=kept)
    state, outcome = run(state, source, count)
    return (state if mode == "train" else state._replace(trainable=[])), outcome


def _specs() -> tuple[jax.sharding.PartitionSpec, jax.sharding.PartitionSpec]:
    return jax.sharding.PartitionSpec(None, AXIS), jax.sharding.PartitionSpec()
