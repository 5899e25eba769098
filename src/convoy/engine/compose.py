"""Composition of a step and its wrappers into one compiled program."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps

import jax
import keras
from convoy import cpu, keras_bridge
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.local_batch import Fetch, fetcher, local_batch_shapes
from convoy.engine.data.placement import AXIS, REPLICATED, SHARDED
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.numerics.loss_scale import AutomaticLossScale
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.state import Mode, State, Variables
from convoy.engine.step.accumulate import accumulate
from convoy.engine.step.activation_checkpointing import checkpoint_activations, segments_of
from convoy.engine.step.all_reduce import reducer
from convoy.engine.step.constant_folding import FoldedStep
from convoy.engine.step.global_batch import GlobalBatch
from convoy.engine.step.loop import collect, loop
from convoy.engine.step.replicate import (
    Roles,
    over_replicas,
    replicate,
    replicate_gradients,
)
from convoy.engine.step.shard_state import StateShards
from convoy.engine.step.sharded_operations import ShardedOperations
from convoy.engine.step.step import (
    ForwardStep,
    Gather,
    GradientStep,
    Position,
    Step,
    custom_step,
    denominator_step,
    evaluation_step,
    gradient_step,
    prediction_step,
    results,
)
from convoy.engine.step.update import update
from convoy.types import Arrays, Batch, Logs, PyTree, Shapes
from jax.sharding import NamedSharding, PartitionSpec

Run = Callable[..., tuple[State, PyTree]]
"""Takes the state, a source and a span of steps; returns the new state and the outcome."""

Program = Callable[..., tuple[State, PyTree]]
"""A `Run` whose first argument is the arrays that are read but not changed."""


@dataclass(frozen=True)
class Composition:
    """Builds the programs of one model in one mode."""

    # A training program, from the inside out:
    #
    #     loop                                many weight updates in one device call
    #      |  update                          the optimizer; unscales gradients, rounds weights
    #      |   |  replicate_gradients         data parallelism: all-reduce over replicas
    #      |   |   |  accumulate              gradient accumulation: a loop over micro-batches
    #      |   |   |   |  checkpoint_activations
    #      |   |   |   |   |  gradient_step   forward pass, loss, gradients of a micro-batch
    #
    # With data parallelism, each replica runs all of it (shard_map around the loop). With a sharded
    # state, shard_map is around the gradients only, and XLA partitions the update; `shard_state`
    # replaces the all-reduce, and gathers sharded weights. The wrappers are independent of each
    # other. Models in pipeline stages are not composed here.
    #
    # A custom `train_step` replaces everything except the loop (`_on_global_batch`).

    model: keras.Model
    config: ExecutionConfig
    mode: Mode
    roles: Roles
    shards: StateShards | None
    variables: Variables

    def replicas(self, chunk: Chunk) -> int:
        """Return how many replicas divide a chunk's micro-batches."""
        return self.config.replicas if chunk.sharded else 1

    def fold(self, chunk: Chunk, state: Shapes) -> FoldedStep | None:
        """Fold the constants of a step; return `None` if it cannot be divided.

        Args:
            chunk: a chunk of the kind that it will run on.
            state: shapes and types of the state.
        """
        if custom_step(self.model, self.mode, fetch_nothing) is not None:
            return None
        step = self._for_local_batch(self._inference(fetch_nothing, False, None), chunk)
        replicas = self.replicas(chunk)
        return FoldedStep.of(
            lambda state, batch: step(state, (batch, 0)),
            state,
            local_batch_shapes(chunk, replicas),
            self.roles,
            cpu.fuse,
            self.config.placement.mesh,
            replicas,
        )

    def program(
        self, chunk: Chunk, folded: FoldedStep | None, output_steps: int
    ) -> jax.stages.Wrapped:
        """Return the compiled program for chunks of one kind.

        Args:
            chunk: a chunk of that kind.
            folded: the step with folded constants, if it can be folded.
            output_steps: steps whose outputs the program can hold; prediction only.
        """
        fetch = fetcher(chunk, self.replicas(chunk))
        custom = custom_step(self.model, self.mode, self._fetch_global(chunk))
        if custom is not None:
            run = self._on_global_batch(custom, output_steps)
        elif self.mode == "train" and self.shards is not None:
            run = self._with_sharded_state(fetch, chunk, self.shards)
        else:
            run = self._on_each_replica(fetch, chunk, folded, output_steps)
        program: Program = partial(run_steps, run, self.mode)
        mesh = self.config.placement.mesh
        if custom is not None and mesh is not None:
            program = _with_operations(program, lambda: ShardedOperations(mesh))
        elif self.mode == "train" and cpu.fuses(self.config.placement.platform):
            program = _with_operations(program, lambda: self._fusion(chunk))
        if custom is None:
            program = self._for_local_batch(program, chunk)
        # The state, which is the second argument, is donated.
        return jax.jit(program, donate_argnums=1, compiler_options=self._compiler_options())

    def _compiler_options(self) -> dict[str, str]:
        if self.config.activation_checkpointing is None or self.config.placement.platform != "cpu":
            return {}
        # XLA:CPU's default scheduler computes activations again as early as it can, which keeps
        # them alive until the backward pass and so defeats activation checkpointing.
        return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

    def _on_each_replica(
        self, fetch: Fetch, chunk: Chunk, folded: FoldedStep | None, output_steps: int
    ) -> Run:
        """Return the device loop in which each replica runs the complete step."""
        mesh, sharded = self.config.placement.mesh, self.replicas(chunk) > 1
        run: Run
        if self.mode == "predict":
            run = collect(self._inference(fetch, sharded, folded), output_steps)
        elif self.mode == "evaluate":
            run = self._with_results(loop(self._inference(fetch, sharded, folded)))
        else:
            gradients = self._gradients(fetch, chunk)
            run = self._with_results(loop(self._updates(gradients)))
        if mesh is None:
            return run
        outcome = SHARDED if sharded and self.mode == "predict" else REPLICATED
        return over_replicas(
            run, mesh, (REPLICATED, _source_spec(chunk), REPLICATED), (REPLICATED, outcome)
        )

    def _with_sharded_state(self, fetch: Fetch, chunk: Chunk, shards: StateShards) -> Run:
        """Return the device loop in which only the gradients are computed per replica.

        XLA then partitions the weight update by the shards of the state: an optimizer may combine
        the elements of a weight, or all weights, in any way.
        """
        local = self._gradients(fetch, chunk)

        def without_optimizer(state: State, position: Position) -> tuple[State, Arrays, Logs]:
            new, gradients, logs = local(state, position)
            return new._replace(optimizer=[]), gradients, logs

        # The loss may read a scalar of the optimizer, such as a loss scale, but not its shards.
        # They are not passed to the loss, so XLA removes the all-gather.
        specs = shards.specs_for_gradients
        # If the batch is not sharded, all replicas have the same gradients.
        reduced_specs = shards.gradients if self.replicas(chunk) > 1 else REPLICATED
        on_replicas = over_replicas(
            without_optimizer,
            shards.mesh,
            (specs, (_source_spec(chunk), REPLICATED)),
            (specs, reduced_specs, REPLICATED),
        )

        def gradients(state: State, position: Position) -> tuple[State, Arrays, Logs]:
            new, reduced, logs = on_replicas(state, position)
            return new._replace(optimizer=state.optimizer), reduced, logs

        return self._with_results(loop(shards.constrain(self._updates(gradients))))

    def _fetch_global(self, chunk: Chunk) -> Fetch:
        """Return the function that fetches the global batch, sharded over the replicas."""
        fetch, mesh = fetcher(chunk, replicas=1), self.config.placement.mesh
        if mesh is None or not chunk.sharded:
            return fetch
        by_sample = NamedSharding(mesh, PartitionSpec(AXIS))
        return lambda *position: jax.lax.with_sharding_constraint(fetch(*position), by_sample)

    def _on_global_batch(self, step: Step, output_steps: int) -> Run:
        """Return the device loop of a custom step.

        XLA partitions its computation over the replicas along the batch axis, because a custom step
        may combine samples in any way and must give the same result as on one device.
        """
        mesh = self.config.placement.mesh
        if mesh is not None:
            shards = self.shards or StateShards.none(mesh, self.variables)
            step = shards.on_gathered_weights(step)
        return collect(step, output_steps) if self.mode == "predict" else loop(step)

    def _global_batch(self, chunk: Chunk) -> GlobalBatch:
        """Return Keras's operations for a local batch of a chunk."""
        local_batches = self.config.local_batches_in_mean(self.mode, chunk)
        return GlobalBatch(local_batches, self.config.batch_norm_group)

    def _fusion(self, chunk: Chunk) -> cpu.Fusion:
        is_synchronised = self.config.batch_norm_group > 1
        return cpu.Fusion(self._global_batch(chunk).over_group if is_synchronised else None)

    def _for_local_batch(self, program: Program, chunk: Chunk) -> Program:
        return _with_operations(program, lambda: self._global_batch(chunk))

    def _inference(self, fetch: Fetch, sharded: bool, folded: FoldedStep | None) -> ForwardStep:
        is_prediction = self.mode == "predict"
        make = prediction_step if is_prediction else evaluation_step
        step = folded.at(fetch) if folded else make(self.model, fetch)
        if not sharded:
            return step
        return replicate(step, (folded or self).roles, keeps_outputs=is_prediction)

    def _gradients(self, fetch: Fetch, chunk: Chunk) -> GradientStep:
        config, replicas, shards = self.config, self.replicas(chunk), self.shards
        gather = self._gather_by_micro_batch(replicas)
        segments = segments_of(
            self.model, config.activation_checkpointing, chunk.micro_batch_samples // replicas
        )
        step = gradient_step(self.model, fetch, gather)
        step = checkpoint_activations(step, self.model, segments)
        if chunk.sharded:
            step = accumulate(step, config, denominator_step(self.model, fetch, gather))
        if shards is not None and gather is None:
            step = shards.gather_around(step)
        if replicas > 1:
            reduce = reducer(config.reduction, config.reduction_bucket)
            if shards is not None:
                reduce = shards.scatter(reduce, config.reduction, gather is not None)
            step = replicate_gradients(step, self.roles, reduce)
        return step

    def _gather_by_micro_batch(self, replicas: int) -> Gather | None:
        """Return the function that gathers weights inside the loss; `None` to gather outside.

        Inside the loss, a device never holds the gradients of all weights at once.
        """
        prepared = PreparedModel.of(self.model)
        loss_scaling = prepared.numerics.settings.loss_scaling
        reads_all_gradients = prepared.gradient_map is not None or isinstance(
            loss_scaling, AutomaticLossScale
        )
        if self.shards is None or replicas == 1 or reads_all_gradients:
            return None
        return self.shards.gather if self.shards.by_micro_batch else None

    def _updates(self, gradients: GradientStep) -> Step:
        settings = PreparedModel.of(self.model).numerics.settings
        return update(gradients, self.model.optimizer, settings)

    def _with_results(self, run: Run) -> Run:
        numerics = PreparedModel.of(self.model).numerics

        def with_results(state: State, source: PyTree, span: jax.Array) -> tuple[State, Logs]:
            state, logs = run(state, source, span)
            return state, results(self.model, state, logs) | numerics.logs(state.numerics)

        return with_results


def fetch_nothing(source: Batch, _: jax.Array) -> Batch:
    """Return the source, which is the batch itself."""
    return source


def _with_operations(
    program: Program, operations: Callable[[], GlobalBatch | ShardedOperations | cpu.Fusion]
) -> Program:
    """Trace a program with replacements of Keras's operations, created for each trace."""

    # Profilers show the name of a program.
    @wraps(run_steps)
    def traced(*args: PyTree) -> tuple[State, PyTree]:
        with keras_bridge.replaced_operations(operations()):
            return program(*args)

    return traced


def run_steps(
    run: Run,
    mode: Mode,
    constants: Arrays,
    state: State,
    source: PyTree,
    span: jax.Array,
) -> tuple[State, PyTree]:
    """Run with read-only arrays in place of the trainable variables."""
    if mode == "train":
        return run(state, source, span)
    state, outcome = run(state._replace(trainable=constants), source, span)
    return state._replace(trainable=[]), outcome


def _source_spec(chunk: Chunk) -> jax.sharding.PartitionSpec:
    return SHARDED if chunk.sharded and chunk.layout == "block" else REPLICATED
