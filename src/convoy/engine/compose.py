"""How the wrappers of the step are put together into one program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import jax
import keras
from convoy import cpu, keras_bridge
from convoy.engine.data.chunks import Chunk, fetcher, local_batch_shapes
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.state import Mode, State
from convoy.engine.step.accumulate import accumulate
from convoy.engine.step.activation_checkpointing import rematerialise, runs_of
from convoy.engine.step.all_reduce import reducer
from convoy.engine.step.constant_folding import Hoisted
from convoy.engine.step.global_batch import GlobalBatch
from convoy.engine.step.loop import collect, loop
from convoy.engine.step.replicate import (
    DIVIDED,
    EVERYWHERE,
    Roles,
    over_replicas,
    replicate,
    replicate_forward,
    replicate_gradients,
)
from convoy.engine.step.shard_optimizer import Shards
from convoy.engine.step.step import (
    Fetch,
    Forward,
    GradientStep,
    Logs,
    Step,
    denominator_parts,
    evaluation_step,
    gradient_step,
    prediction_step,
    results,
)
from convoy.engine.step.update import update

Run = Callable[..., tuple[State, Any]]
"""Takes the state, a source and a number of steps; returns the new state and what came out."""


@dataclass(frozen=True)
class Composition:
    """Makes the programs of one model in one mode."""

    model: keras.Model
    config: ExecutionConfig
    mode: Mode
    roles: Roles
    shards: Shards | None

    def accumulated(self, chunk: Chunk) -> int:
        """Return how many of a chunk's micro-batches make a weight update, or a step of others."""
        return self.config.accumulation.count if self.mode == "train" and chunk.sharded else 1

    def replicas(self, chunk: Chunk) -> int:
        """Return how many replicas divide a chunk's micro-batches."""
        return self.config.replicas if chunk.sharded else 1

    def hoist(self, chunk: Chunk, state: State) -> Hoisted | None:
        """Take out of a step what follows from weights alone; `None` if it must stay whole.

        Args:
            chunk: what it will run on.
            state: the shapes and types of the state.
        """
        make: Any = prediction_step if self.mode == "predict" else evaluation_step
        step = self._with_operations(make(self.model, given), chunk)
        replicas = self.replicas(chunk)
        return Hoisted.of(
            lambda state, batch: step(state, (batch, 0)),
            state,
            local_batch_shapes(chunk, replicas),
            self.roles,
            cpu.fuse,
            self.config.placement.mesh,
            replicas,
        )

    def program(self, chunk: Chunk, hoisted: Hoisted | None, capacity: int) -> Callable[..., Any]:
        """Return the compiled program for chunks of this kind.

        Args:
            chunk: what it will run on.
            hoisted: the step without what follows from weights alone.
            capacity: steps whose outputs it can hold; prediction only.
        """
        fetch = fetcher(chunk, self.replicas(chunk))
        if self.mode == "train" and self.shards is not None:
            run = self._run_with_shards(fetch, chunk, self.shards)
        else:
            run = self._run_on_replicas(fetch, chunk, hoisted, capacity)
        program: Callable[..., Any] = partial(_run_whole, run, self.mode)
        if self.mode == "train" and cpu.fuses(self.config.placement.platform):
            program = _traced_with(program, lambda: self._fusion(chunk))
        program = self._with_operations(program, chunk)
        return jax.jit(program, donate_argnums=1, compiler_options=self._compiler_options())

    def _compiler_options(self) -> dict[str, Any]:
        if self.config.activation_checkpointing is None or self.config.placement.platform != "cpu":
            return {}
        # XLA's default order for CPUs runs early what could run later, and so would hold what was
        # to be forgotten: it runs all that is to be computed again before the backward pass.
        return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

    def _run_on_replicas(
        self, fetch: Fetch, chunk: Chunk, hoisted: Hoisted | None, capacity: int
    ) -> Run:
        """Put the device loop together, all of it on each replica."""
        mesh, sharded = self.config.placement.mesh, self.replicas(chunk) > 1
        run: Run
        if self.mode == "predict":
            run = collect(self._forward(fetch, sharded, hoisted), capacity)
        elif self.mode == "evaluate":
            run = self._with_results(loop(self._evaluation(fetch, sharded, hoisted)))
        else:
            gradients = self._gradients(fetch, chunk)
            run = self._with_results(loop(self._updates(gradients)))
        if mesh is None:
            return run
        result = DIVIDED if sharded and self.mode == "predict" else EVERYWHERE
        return over_replicas(
            run,
            mesh,
            (EVERYWHERE, _source_spec(chunk), EVERYWHERE),
            (EVERYWHERE, result),
        )

    def _run_with_shards(self, fetch: Fetch, chunk: Chunk, shards: Shards) -> Run:
        """Put the device loop together, with only the gradients on each replica.

        XLA then divides the weight update by the shards, whatever the optimizer computes.
        """
        gradients = over_replicas(
            self._gradients(fetch, chunk),
            shards.mesh,
            (EVERYWHERE, (_source_spec(chunk), EVERYWHERE)),
            (EVERYWHERE, EVERYWHERE, EVERYWHERE),
        )
        return self._with_results(loop(shards.keep(self._updates(gradients))))

    def _global_batch(self, chunk: Chunk) -> GlobalBatch:
        """Return the operations for a chunk's shares, by how many a mean will be taken over."""
        config = self.config
        replicas = self.replicas(chunk) if config.reduction == "mean" else 1
        averages = config.accumulation.reduction == "mean"
        shares = replicas * (self.accumulated(chunk) if averages else 1)
        return GlobalBatch(shares, config.batch_norm_group)

    def _fusion(self, chunk: Chunk) -> cpu.Fusion:
        shares = self.config.batch_norm_group > 1
        return cpu.Fusion(self._global_batch(chunk).over_group if shares else None)

    def _with_operations(self, program: Callable[..., Any], chunk: Chunk) -> Callable[..., Any]:
        return _traced_with(program, lambda: self._global_batch(chunk))

    def _forward(self, fetch: Fetch, sharded: bool, hoisted: Hoisted | None) -> Forward:
        step = hoisted.at(fetch) if hoisted else prediction_step(self.model, fetch)
        roles = hoisted.roles if hoisted else self.roles
        return replicate_forward(step, roles) if sharded else step

    def _evaluation(self, fetch: Fetch, sharded: bool, hoisted: Hoisted | None) -> Step:
        step: Step = hoisted.at(fetch) if hoisted else evaluation_step(self.model, fetch)
        roles = hoisted.roles if hoisted else self.roles
        return replicate(step, roles) if sharded else step

    def _gradients(self, fetch: Fetch, chunk: Chunk) -> GradientStep:
        replicas = self.replicas(chunk)
        runs = runs_of(self.model, self.config.activation_checkpointing, chunk.batch // replicas)
        step = rematerialise(gradient_step(self.model, fetch), self.model, runs)
        if chunk.sharded:
            parts = denominator_parts(self.model, fetch)
            step = accumulate(step, self.config.accumulation, parts)
        if replicas > 1:
            reduce = reducer(self.config.reduction, self.config.reduction_bucket)
            step = replicate_gradients(step, self.roles, reduce)
        return step

    def _updates(self, gradients: GradientStep) -> Step:
        return update(
            gradients, self.model.optimizer, PreparedModel.of(self.model).numerics.settings
        )

    def _with_results(self, run: Run) -> Run:
        def with_results(state: State, source: Any, count: jax.Array) -> tuple[State, Logs]:
            state, logs = run(state, source, count)
            reported = results(self.model, state, logs)
            return state, reported | PreparedModel.of(self.model).numerics.logs(state.numerics)

        return with_results


def given(source: Any, _: Any) -> Any:
    """Fetch nothing: the source is the batch."""
    return source


def _traced_with(
    program: Callable[..., Any], replacements: Callable[[], Any]
) -> Callable[..., Any]:
    """Trace a program with other operations than Keras's own, made anew for each trace."""

    @wraps(_run_whole)
    def traced(*args: Any) -> Any:
        with keras_bridge.replaced_operations(replacements()):
            return program(*args)

    return traced


def _run_whole(
    run: Run,
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


def _source_spec(chunk: Chunk) -> jax.sharding.PartitionSpec:
    return DIVIDED if chunk.sharded and chunk.layout == "block" else EVERYWHERE
