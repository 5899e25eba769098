"""The compiled programs of a model: what the wrappers of the step make together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax
import keras
import numpy as np
from convoy import cpu, keras_bridge
from convoy.engine import numerics
from convoy.engine.accumulate import accumulate
from convoy.engine.feed import Chunk, fetcher, shapes, share_shapes, size
from convoy.engine.hoist import Hoisted, Prepared
from convoy.engine.loop import collect, loop
from convoy.engine.plan import Plan
from convoy.engine.reduce import reducer
from convoy.engine.remat import rematerialise, runs_of
from convoy.engine.replicate import (
    DIVIDED,
    EVERYWHERE,
    Roles,
    over_replicas,
    replicate,
    replicate_forward,
    replicate_gradients,
)
from convoy.engine.shard import Shards
from convoy.engine.state import Mode, State, Variables
from convoy.engine.step import (
    Fetch,
    Forward,
    GradientStep,
    Logs,
    Step,
    evaluation_step,
    gradient_step,
    prediction_step,
    results,
)
from convoy.engine.update import update
from convoy.engine.whole_batch import WholeBatch


class Programs:
    """Runs chunks of data through a model; compiles a program when a chunk needs another one."""

    def __init__(self, model: keras.Model, plan: Plan, mode: Mode, prepared: Prepared) -> None:
        self.model = model
        self.plan = plan
        self.placement = plan.placement
        self.mode = mode
        self.prepared = prepared
        self.variables = Variables(model, mode)
        self.roles = Roles.of(model, self.variables)
        self.shards = Shards.of(plan, self.variables) if mode == "train" else None
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
        kept, changing = self._divide(state, hoisted)
        count = np.int32(chunk.micro_batches // self._accumulated(chunk))
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
        placed = State(*self.placement.everywhere(tuple(state._replace(optimizer=[]))))
        if self.shards is not None:
            optimizer = self.shards.place(state.optimizer)
        else:
            optimizer = self.placement.everywhere(state.optimizer)
        self.variables.write(placed._replace(optimizer=optimizer))

    def memory(self, chunk: Chunk) -> Any:
        """Return XLA's own analysis of the memory that a chunk's program takes on a device."""
        program, hoisted = self._program(chunk)
        kept, changing = self._divide(self.variables.read(), hoisted)
        jitted: Any = program
        return jitted.lower(kept, changing, chunk.source, np.int32(1)).compile().memory_analysis()

    def limit_outputs(self, example: Any, budget: int, most: int) -> int:
        """Choose how many steps' outputs a prediction keeps on the device, and return it."""
        leaves, structure = jax.tree.flatten(example)
        key = (*leaves, structure)
        if key not in self._output_bytes:
            step = prediction_step(self.model, _given)
            _, outputs = jax.eval_shape(step, self.variables.read(), (example, 0))
            self._output_bytes[key] = size(outputs)
        self.capacity = max(1, min(most, budget // max(1, self._output_bytes[key])))
        return self.capacity

    def _wait_for_all_but_one(self) -> None:
        # Bounds the data that is in flight; the device always has one call waiting.
        while len(self._running) > 1:
            jax.block_until_ready(self._running.pop(0))

    def _accumulated(self, chunk: Chunk) -> int:
        """Return how many of a chunk's micro-batches make a weight update, or a step of others."""
        return self.plan.accumulation.count if self.mode == "train" and chunk.spread else 1

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
        replicas = self.placement.replicas if spread else 1
        batch = share_shapes(chunk, replicas)
        leaves, structure = jax.tree.flatten(batch)
        key = (*leaves, structure, spread)
        if key not in self._hoisted:
            make: Any = prediction_step if self.mode == "predict" else evaluation_step
            step = _with_operations(make(self.model, _given), lambda: self._whole_batch(chunk))
            self._hoisted[key] = Hoisted.of(
                lambda state, batch: step(state, (batch, 0)),
                shapes(self.variables.read()),
                batch,
                self.roles,
                cpu.fuse,
                self.placement.mesh,
                replicas,
            )
        return self._hoisted[key]

    def _build(self, chunk: Chunk, hoisted: Hoisted | None) -> Callable[..., tuple[State, Any]]:
        spread = self.placement.mesh is not None and chunk.spread
        fetch = fetcher(chunk, self.placement.replicas if spread else 1)
        if self.mode == "train" and self.shards is not None:
            run = self._run_with_shards(fetch, chunk, spread, self.shards)
        else:
            run = self._run_on_replicas(fetch, chunk, spread, hoisted)
        program: Callable[..., Any] = partial(_run_whole, run, self.mode)
        program = _with_operations(program, lambda: self._whole_batch(chunk))
        if self.mode == "train" and cpu.fuses(self.placement.platform):
            program = _with_operations(program, cpu.Fusion)
        return jax.jit(program, donate_argnums=1, compiler_options=self._compiler_options())

    def _compiler_options(self) -> dict[str, Any]:
        if self.plan.remat is None or self.placement.platform != "cpu":
            return {}
        # XLA's default order for CPUs runs early what could run later, and so would hold what was
        # to be forgotten: it runs all that is to be computed again before the backward pass.
        return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

    def _run_on_replicas(
        self, fetch: Fetch, chunk: Chunk, spread: bool, hoisted: Hoisted | None
    ) -> Callable[..., tuple[State, Any]]:
        """Put the device loop together, all of it on each replica."""
        run: Callable[..., tuple[State, Any]]
        if self.mode == "predict":
            run = collect(self._forward(fetch, spread, hoisted), self.capacity)
        elif self.mode == "evaluate":
            run = self._with_results(loop(self._evaluation(fetch, spread, hoisted)))
        else:
            gradients = self._gradients(fetch, chunk, spread)
            run = self._with_results(loop(self._updates(gradients)))
        if self.placement.mesh is None:
            return run
        result = DIVIDED if spread and self.mode == "predict" else EVERYWHERE
        return over_replicas(
            run,
            self.placement.mesh,
            (EVERYWHERE, _source_spec(chunk, spread), EVERYWHERE),
            (EVERYWHERE, result),
        )

    def _run_with_shards(
        self, fetch: Fetch, chunk: Chunk, spread: bool, shards: Shards
    ) -> Callable[..., tuple[State, Any]]:
        """Put the device loop together, with only the gradients on each replica.

        XLA then divides the weight update by the shards, whatever the optimizer computes.
        """
        gradients = over_replicas(
            self._gradients(fetch, chunk, spread),
            shards.mesh,
            (EVERYWHERE, (_source_spec(chunk, spread), EVERYWHERE)),
            (EVERYWHERE, EVERYWHERE, EVERYWHERE),
        )
        return self._with_results(loop(shards.keep(self._updates(gradients))))

    def _whole_batch(self, chunk: Chunk) -> WholeBatch:
        """Return the operations for a chunk's shares, by how many a mean will be taken over."""
        plan = self.plan
        spread = self.placement.mesh is not None and chunk.spread
        replicas = plan.replicas if spread and plan.reduction == "mean" else 1
        averages = plan.accumulation.reduction == "mean"
        shares = replicas * (self._accumulated(chunk) if averages else 1)
        return WholeBatch(shares, plan.norm_group)

    def _forward(self, fetch: Fetch, spread: bool, hoisted: Hoisted | None) -> Forward:
        step = hoisted.at(fetch) if hoisted else prediction_step(self.model, fetch)
        roles = hoisted.roles if hoisted else self.roles
        return replicate_forward(step, roles) if spread else step

    def _evaluation(self, fetch: Fetch, spread: bool, hoisted: Hoisted | None) -> Step:
        step: Step = hoisted.at(fetch) if hoisted else evaluation_step(self.model, fetch)
        roles = hoisted.roles if hoisted else self.roles
        return replicate(step, roles) if spread else step

    def _gradients(self, fetch: Fetch, chunk: Chunk, spread: bool) -> GradientStep:
        samples = chunk.batch // (self.placement.replicas if spread else 1)
        runs = runs_of(self.model, self.plan.remat, samples)
        step = rematerialise(gradient_step(self.model, fetch), self.model, runs)
        if chunk.spread:
            step = accumulate(step, self.plan.accumulation)
        if spread:
            reduce = reducer(self.plan.reduction, self.plan.bucket_bytes)
            step = replicate_gradients(step, self.roles, reduce)
        return step

    def _updates(self, gradients: GradientStep) -> Step:
        return update(gradients, self.model.optimizer, numerics.of(self.model).settings)

    def _with_results(
        self, run: Callable[..., tuple[State, Logs]]
    ) -> Callable[..., tuple[State, Logs]]:
        def with_results(state: State, source: Any, count: jax.Array) -> tuple[State, Logs]:
            state, logs = run(state, source, count)
            reported = results(self.model, state, logs)
            return state, reported | numerics.of(self.model).logs(state.numerics)

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

    def __init__(self, model: keras.Model, plan: Plan) -> None:
        self.model = model
        self.plan = plan
        self._made: dict[Mode, Programs] = {}
        self._prepared = Prepared()

    def get(self, mode: Mode) -> Programs:
        if mode == "train":
            self._prepared.clear()  # the weights are about to change
        programs = self._made.get(mode)
        if programs is None or not programs.still_fits():
            programs = self._made[mode] = Programs(self.model, self.plan, mode, self._prepared)
        programs.place()
        return programs


def _with_operations(
    program: Callable[..., Any], replacements: Callable[[], Any]
) -> Callable[..., Any]:
    """Trace a program with other operations than Keras's own, made anew for each trace."""

    @wraps(_run_whole)
    def traced(*args: Any) -> Any:
        with keras_bridge.replaced_operations(replacements()):
            return program(*args)

    return traced


def _rows(outputs: Any, chunk: Chunk) -> Any:
    """Turn outputs by step into outputs by sample."""

    def rows(leaf: jax.Array) -> np.ndarray:
        steps = np.asarray(leaf)[: chunk.micro_batches]
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


def _given(source: Any, _: Any) -> Any:
    """Fetch nothing: the source is the batch."""
    return source


def _source_spec(chunk: Chunk, spread: bool) -> jax.sharding.PartitionSpec:
    return DIVIDED if spread and chunk.layout == "block" else EVERYWHERE
