"""Training in pipeline stages: runs the actions of a schedule, then the weight update."""

import time
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import keras_bridge
from convoy.cpu.threads import cores
from convoy.engine import progress
from convoy.engine.chunk_runner import Outcome
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.local_batch import Fetch
from convoy.engine.data.placement import device_put
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER, Observer
from convoy.engine.prepared_model import PreparedModel
from convoy.pipeline.communication import StageCommunication
from convoy.pipeline.config import PipelineConfig
from convoy.pipeline.device_layout import DeviceLayout, ReplicaValues
from convoy.pipeline.runner.base import PipelineCall, PipelineRunner, StagePrograms
from convoy.pipeline.runner.stage_forward import StageFunction, Transform
from convoy.pipeline.runner.stage_program import BackwardInputs, StageProgram
from convoy.pipeline.runner.update import (
    PipelineUpdate,
    RankUpdate,
    check_optimizer,
    joined,
    make_advance,
)
from convoy.pipeline.schedule import Action, Kind, Schedule
from convoy.pipeline.schedules import DEFAULT, generate
from convoy.pipeline.simulation import simulate
from convoy.pipeline.timeline import Timeline, TimelineRecorder
from convoy.types import Arrays, PyTree

# Micro-batches of a stage that may be dispatched ahead of the devices, for each stage of the model.
MICRO_BATCHES_AHEAD = 2


class TrainingRunner(PipelineRunner[StageProgram]):
    """Trains a model in pipeline stages."""

    def __init__(
        self,
        model: keras.Model,
        config: ExecutionConfig,
        pipeline: PipelineConfig,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        super().__init__(model, config, pipeline, "train", observer)
        self.numerics = PreparedModel.of(model).numerics
        self.rank_updates = self._make_updates()
        self.advance = make_advance(self.numerics.settings)
        self.serialized = False
        """Whether a timeline is measured with one action at a time."""

    def check_model(self) -> None:
        super().check_model()
        config, maps_gradients = self.config, PreparedModel.of(self.model).gradient_map is not None
        for is_set, name, instead in (
            (config.batch_norm_group > 1, "batch_norm_group", "Leave it out."),
            (config.shard, f"shard={config.shard!r}", "Stages already divide the state."),
            (maps_gradients, "MapGradientOptimizer", "Override its apply()."),
            (
                config.activation_checkpointing is not None,
                "activation_checkpointing",
                "Use set_pipelining_options(activation_checkpointing=True).",
            ),
        ):
            if is_set:
                raise ValueError(f"{name} is not supported with pipeline stages. {instead}")
        check_optimizer(self.model.optimizer)

    def _make_updates(self) -> list[RankUpdate]:
        parts, layout = self.variables.parts, self.layout
        trainable, statistics = map(layout.by_rank, (parts.trainable, parts.non_trainable))
        optimizers = keras_bridge.split_optimizer(
            self.model.optimizer, trainable, global_clipnorm=None
        )
        updates = []
        for rank, (optimizer, slots) in enumerate(optimizers):
            update = RankUpdate(
                self.model,
                trainable[rank],
                statistics[rank],
                optimizer,
                slots,
                layout.groups[rank].mesh,
                self.config,
            )
            update.reduce = self.observer.program(f"device {rank} reduce", update.reduce)
            update.apply = self.observer.program(f"device {rank} update", update.apply)
            updates.append(update)
        return updates

    def place(self) -> None:
        slot_ranks: dict[int, list[int]] = {}
        for rank, update in enumerate(self.rank_updates):
            for variable in update.variables:
                slot_ranks.setdefault(id(variable), []).append(rank)
        self.layout.place(slot_ranks)

    def run_call(self, chunk: Chunk) -> Outcome:
        update = PipelineUpdate(
            self.layout, self.rank_updates, self.numerics, self.advance, sharded=chunk.sharded
        )
        # An incomplete batch passes through the pipeline as a single micro-batch.
        stages, mapping = len(self.layout.stages), self.layout.mapping
        schedule = self.schedule if chunk.sharded else generate(DEFAULT, stages, 1, mapping)
        call = TrainingCall(
            self.layout,
            chunk,
            self.programs_for(chunk),
            schedule,
            update,
            self.config.accumulation_dtype,
        )
        recorded = self.pipeline.record and not self.placement.crosses_processes
        call.run(partial(self._make_recorder, schedule) if recorded else None)
        self.timeline = call.timeline or self.timeline
        metrics = call.finish()
        return self.metric_results(metrics) | self.numerics.logs(update.values)

    def _make_recorder(self, schedule: Schedule) -> TimelineRecorder:
        replicas = len(self.layout.replicas)
        simulated = simulate(schedule)
        return TimelineRecorder(schedule, simulated, replicas, serialized=self.serialized)

    def make_program(
        self, number: int, function: StageFunction, fetch: Fetch, transform: Transform, chunk: Chunk
    ) -> StageProgram:
        averages = self.config.accumulation_reduction == "mean"
        return StageProgram(
            function,
            fetch,
            1 / self.config.gradient_accumulation_for("train", chunk) if averages else 1,
            activation_checkpointing=self.pipeline.activation_checkpointing
            and number != self.layout.last,
            transform=transform,
            loss_scaling=self.numerics.settings.loss_scaling,
            program=lambda kind, program: self.observer.program(f"stage {number} {kind}", program),
        )


class TrainingCall(PipelineCall):
    """One device call: some weight updates, without waiting for any of them.

    Args:
        layout, chunk: see `PipelineCall`.
        stage_programs: programs of all stages.
        schedule: schedule of one weight update.
        update: weight updates of the call.
        accumulation_dtype: type of the gradient accumulators; `None` for that of each weight.
    """

    # The actions of all devices form one sequence, sorted by their simulated start. Python iterates
    # over it and dispatches each action on every replica, so the dependencies of an action are
    # always dispatched before it. For 1F1B with 2 stages and 3 micro-batches:
    #
    #     simulated    device 0   0F0 0F1 .   .   0B0 --- 0F2 0B1 --- .   0B2 ---
    #                  device 1   .   1F0 1B0 --- 1F1 1B1 --- 1F2 1B2 --- .   .
    #
    #     dispatched   0F0  0F1 1F0  1B0  0B0 1F1  1B1  0F2  0B1 1F2  1B2  0B2   weight update
    #
    # Between the forward and the backward pass of a micro-batch, `kept` holds the residuals of its
    # stage. With a backward pass in two halves (I and W) it holds the inputs of I and the values
    # that W reads from I, until W has run:
    #
    #     F ---- residuals ----> B                F ---- residuals ----> I ---- shared ----> W

    def __init__(
        self,
        layout: DeviceLayout,
        chunk: Chunk,
        stage_programs: StagePrograms[StageProgram],
        schedule: Schedule,
        update: PipelineUpdate,
        accumulation_dtype: str | None,
    ) -> None:
        super().__init__(layout, chunk, layout.replicas, stage_programs.shapes)
        self.programs, self.schedule, self.update = stage_programs.programs, schedule, update
        self.timeline: Timeline | None = None
        self.first = 0
        """Index of the weight update's first micro-batch in the chunk."""
        self.kept: dict[tuple[int, int, int], PyTree] = {}
        # Ends of the last passes of micro-batches that are not reported yet, and of backward passes
        # by replica and stage.
        self._micro_batch_ends: deque[jax.Array] = deque()
        self._backward_ends: dict[tuple[int, int], deque[jax.Array]] = defaultdict(deque)
        self.accumulators: ReplicaValues = {replica: {} for replica in self.replicas}
        for v in layout.variables.parts.trainable:
            zeros = np.zeros(v.shape, jnp.dtype(accumulation_dtype or v.dtype))
            for replica, device in layout.group_of(v).devices.items():
                self.accumulators[replica][id(v)] = device_put(zeros, device)

    def run(self, make_recorder: Callable[[], TimelineRecorder] | None = None) -> None:
        """Dispatch all weight updates, and measure the timeline of the last one if requested."""
        order = [event.action for event in simulate(self.schedule).events]
        micro_batches = self.schedule.micro_batches
        updates = self.chunk.micro_batches // micro_batches
        for update in range(updates):
            self.first = update * micro_batches
            self.communication = StageCommunication(self.layout, self.shapes)
            is_last = update == updates - 1
            recorder = make_recorder() if make_recorder is not None and is_last else None
            for action in order:
                for number, replica in enumerate(self.replicas):
                    self._wait_before(action, replica)
                    dispatched = time.perf_counter() if recorder else 0.0
                    done = self.dispatch(action, replica)
                    if recorder:
                        recorder.record(action, number, dispatched, done)
                    if done is not None:
                        self._note_end(action, replica, done)
            if recorder:
                self.timeline = recorder.timeline()
            self.update.run(self.values, self.accumulators)

    def _wait_before(self, action: Action, replica: int) -> None:
        """Wait before a forward pass, if the devices are far behind.

        A CPU starts each program as soon as its inputs are available, in any order. Without this
        wait, forward passes would run ahead of the schedule, and hold the activations of many more
        micro-batches than the schedule allows. If there are more devices than cores, running ahead
        gains no time.
        """
        if action.kind == Kind.FORWARD and not self.layout.placement.crosses_processes:
            ends = self._backward_ends[replica, action.stage]
            devices = len(self.replicas) * len(self.layout.groups)
            ahead = MICRO_BATCHES_AHEAD * len(self.layout.stages) if devices <= cores() else 1
            while len(ends) > ahead:
                ends.popleft().block_until_ready()

    def _note_end(self, action: Action, replica: int, done: jax.Array) -> None:
        """Store the array that signals the end of an action, and report progress."""
        if action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHTS):
            self._backward_ends[replica, action.stage].append(done)
            if action.stage != 0:
                return
            self._micro_batch_ends.append(done)
            computed, ends = 0, self._micro_batch_ends
            while ends and ends[0].is_ready():  # type: ignore[attr-defined]
                ends.popleft()
                computed += 1
            if computed:
                progress.report(computed)

    def run_action(self, action: Action, replica: int) -> jax.Array:
        run = {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.BACKWARD_INPUT: self._backward_input,
            Kind.BACKWARD_WEIGHTS: self._backward_weights,
        }[action.kind]
        return run(action, replica)

    def _forward(self, action: Action, replica: int) -> jax.Array:
        stage, micro_batch = action.stage, action.micro_batch
        arguments = self.forward_arguments(action, replica, self.first + micro_batch)
        result = self.programs[stage].forward(*arguments, self.update.is_scaled)
        self.store(stage, replica, result.non_trainable, result.metrics)
        self.kept[replica, stage, micro_batch] = result.residuals
        self.communication.send_forward(stage, micro_batch, replica, result.outputs, result.loss)
        return result.loss

    def _backward(self, action: Action, replica: int) -> jax.Array:
        received, *added, done = self.programs[action.stage].backward(
            self._backward_inputs(action, replica), *self._accumulators(action.stage, replica)
        )
        self._store_accumulators(action.stage, replica, *added)
        self.communication.send_backward(action.stage, action.micro_batch, replica, received)
        return done

    def _backward_input(self, action: Action, replica: int) -> jax.Array:
        inputs = self._backward_inputs(action, replica)
        received, shared, done = self.programs[action.stage].backward_input(inputs)
        self.kept[replica, action.stage, action.micro_batch] = inputs, shared
        self.communication.send_backward(action.stage, action.micro_batch, replica, received)
        return done

    def _backward_weights(self, action: Action, replica: int) -> jax.Array:
        inputs, shared = self.kept.pop((replica, action.stage, action.micro_batch))
        *added, done = self.programs[action.stage].backward_weights(
            inputs, shared, *self._accumulators(action.stage, replica)
        )
        self._store_accumulators(action.stage, replica, *added)
        return done

    def _backward_inputs(self, action: Action, replica: int) -> BackwardInputs:
        stage, micro_batch = action.stage, action.micro_batch
        return BackwardInputs(
            self.trainable(stage, replica),
            self.kept.pop((replica, stage, micro_batch)),
            self.communication.receive_backward(stage, micro_batch, replica),
            self.update.loss_scale(self.layout.mapping[stage], replica),
        )

    def _accumulators(self, stage: int, replica: int) -> tuple[Arrays, tuple[jax.Array, ...]]:
        own = self.accumulators[replica]
        totals = [own[id(v)] for v in self.layout.stages[stage].trainable]
        return totals, self.update.counts[replica, stage]

    def _store_accumulators(
        self, stage: int, replica: int, totals: Arrays, counts: tuple[jax.Array, ...]
    ) -> None:
        pairs = zip(self.layout.stages[stage].trainable, totals, strict=True)
        self.accumulators[replica] |= {id(v): total for v, total in pairs}
        self.update.counts[replica, stage] = counts

    def finish(self) -> Arrays:
        """Assign all values to their variables, and return those of the metrics."""
        non_trainable = self.layout.variables.parts.non_trainable
        roles = zip(non_trainable, self.layout.roles.seeds, strict=True)
        seeds = {id(variable) for variable, is_seed in roles if is_seed}
        for rank, group in self.layout.local_groups:
            first = next(iter(group.devices))
            update = self.update.rank_updates[rank]
            for variable in [*update.trainable, *update.statistics]:
                # Weights and averaged statistics are equal on all replicas. Seeds and integers may
                # differ; those of the first replica count.
                value = self.values[first][id(variable)]
                if id(variable) in seeds:
                    value = group.put(self.without_seed_offset(first, value))
                elif jnp.issubdtype(value.dtype, jnp.floating):
                    value = joined(self.values, variable, group)
                else:
                    value = group.put(value)
                keras_bridge.assign([variable], [value])
        self.update.write_back()
        self.update.wait(self.values)
        return self.write_metrics()
