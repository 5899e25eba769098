"""Base classes of training and inference in pipeline stages.

A runner holds the compiled programs of all stages and runs chunks of data. A call is the state of
one such run: the values of the variables on every replica, and the tensors in transfer between
stages.

Python only dispatches programs and transfers, each one after everything that it depends on. The
devices execute them asynchronously.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import jax
import keras
import numpy as np
from convoy import keras_bridge
from convoy.engine.compiled_runner import CompiledRunner
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.local_batch import Fetch, fetcher
from convoy.engine.data.placement import device_put
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import Observer
from convoy.engine.state import Mode
from convoy.pipeline.communication import StageCommunication, TensorShapes, transfer_server
from convoy.pipeline.config import PipelineConfig
from convoy.pipeline.device_layout import DeviceLayout, PipelinePlacement, data_position
from convoy.pipeline.runner.metrics import replica_metrics, total_metrics
from convoy.pipeline.runner.stage_forward import (
    Received,
    StageFunction,
    StageInputs,
    Transform,
    make_stage_function,
    micro_batch_shapes,
    shapes_between_stages,
    with_local_operations,
)
from convoy.pipeline.schedule import Action
from convoy.pipeline.stages import stage_assignment
from convoy.pipeline.timeline import Timeline
from convoy.types import Arrays, Shapes

Program = TypeVar("Program")


# A runner is made once for a model and a mode, a call once for each chunk:
#
#     engine.run -- chunk --> PipelineRunner.run
#                               |  programs of all stages for this kind of chunk (compiled once)
#                               v
#                             PipelineCall          values of all variables, by replica
#                               |  dispatch(action, replica), in the order of the schedule
#                               v
#        stage in this process: receive -> program of the stage -> send
#        stage of another one:  expect what it sends
#                               |
#                               v
#                             finish                values back to the Keras variables


class StagePrograms(NamedTuple, Generic[Program]):
    """Programs of all stages for one kind of chunk.

    Attributes:
        programs: program of each stage.
        shapes: shapes of the tensors between stages, if stages are in several processes.
        outputs: shapes of the last stage's outputs, if stages are in several processes.
    """

    programs: list[Program]
    shapes: TensorShapes
    outputs: Shapes


class PipelineRunner(CompiledRunner, Generic[Program]):
    """Runs a model in pipeline stages.

    Args:
        model, config, mode, observer: see `CompiledRunner`.
        pipeline: options of the pipeline.
    """

    def __init__(
        self,
        model: keras.Model,
        config: ExecutionConfig,
        pipeline: PipelineConfig,
        mode: Mode,
        observer: Observer,
    ) -> None:
        super().__init__(model, config, mode, observer)
        self.pipeline = pipeline
        self.check_model()
        assert isinstance(config.placement, PipelinePlacement)
        self.placement: PipelinePlacement = config.placement
        self.assignment = stage_assignment(model)
        self.schedule = pipeline.schedule_for(model, config.gradient_accumulation)
        self.layout = DeviceLayout(model, self.variables, self.schedule.mapping, self.placement)
        if self.placement.crosses_processes:
            transfer_server()  # all processes open theirs together
        self.metric_results = jax.jit(lambda metrics: keras_bridge.metric_results(model, metrics))
        self.timeline: Timeline | None = None
        """The timeline of the last weight update, if it was measured."""
        self._programs: dict[tuple, StagePrograms[Program]] = {}

    def check_model(self) -> None:
        """Raise `ValueError` if the model cannot run in stages."""
        replaced = keras_bridge.overridden(self.model, ("compute_loss", "compute_metrics"))
        if replaced and self.mode != "predict":
            raise ValueError(
                f"{type(self.model).__name__} overrides {' and '.join(replaced)}, which needs all "
                "outputs on one device. Pass a loss and metrics to compile(), or train it without "
                "stages."
            )

    def still_fits(self) -> bool:
        return self.assignment == stage_assignment(self.model) and super().still_fits()

    def place(self) -> None:
        """Move the variables to the devices of their stages."""
        self.layout.place({})

    @abstractmethod
    def make_program(
        self, number: int, function: StageFunction, fetch: Fetch, transform: Transform, chunk: Chunk
    ) -> Program:
        """Return the program of a stage."""

    @property
    def stage_programs(self) -> list[StagePrograms[Program]]:
        """The programs that were made, for each kind of chunk."""
        return list(self._programs.values())

    def programs_for(self, chunk: Chunk) -> StagePrograms[Program]:
        """Return the programs of all stages for chunks of this kind."""
        # A stage is traced for one shape of its inputs, which may differ between calls of `fit`.
        shapes, structure = jax.tree.flatten(micro_batch_shapes(chunk, replicas=1))
        key = (chunk.layout, chunk.micro_batch_samples, chunk.sharded, structure, *shapes)
        if key not in self._programs:
            self._programs[key] = self._make_programs(chunk)
        return self._programs[key]

    def _make_programs(self, chunk: Chunk) -> StagePrograms[Program]:
        stages = self.layout.stages
        replicas = self.placement.replicas if chunk.sharded else 1
        divisor = self.config.local_batches_in_mean(self.mode, chunk)
        shards = replicas * self.config.gradient_accumulation_for(self.mode, chunk)
        transform = with_local_operations(divisor, shards, self.placement.platform)
        fetch = fetcher(chunk, replicas, in_one_program=False)
        functions = [
            make_stage_function(self.model, stages, stage.number, self.mode, replicas)
            for stage in stages
        ]
        programs = [
            self.make_program(number, function, fetch, transform, chunk)
            for number, function in enumerate(functions)
        ]
        shapes: TensorShapes = {}
        outputs: Shapes = None
        if self.placement.crosses_processes:
            traced = functions if self.mode == "predict" else functions[:-1]
            shapes, outputs = shapes_between_stages(stages, traced, chunk, replicas, transform)
        return StagePrograms(programs, shapes, outputs)


class PipelineCall(ABC):
    """One device call of a model in stages.

    Args:
        layout: stages, their devices and their variables.
        chunk: data of the call.
        replicas: replicas of this process that run it.
        shapes: shapes of the tensors between stages, if stages are in several processes.
    """

    def __init__(
        self, layout: DeviceLayout, chunk: Chunk, replicas: Sequence[int], shapes: TensorShapes
    ) -> None:
        self.layout, self.chunk, self.replicas, self.shapes = layout, chunk, replicas, shapes
        self.values = layout.replica_values()
        self.metrics = replica_metrics(layout, chunk)
        self.communication = StageCommunication(layout, shapes)
        first = layout.groups[layout.mapping[0]]
        self._zero = {r: device_put(np.float32(0), d) for r, d in first.devices.items()}

    def dispatch(self, action: Action, replica: int) -> jax.Array | None:
        """Run an action, or receive its results if it belongs to another process.

        Returns:
            An array that is ready when the action has ended, if this process runs it.
        """
        if self.layout.runs(action.stage, replica):
            return self.run_action(action, replica)
        self.communication.expect(action, replica)
        return None

    @abstractmethod
    def run_action(self, action: Action, replica: int) -> jax.Array | None:
        """Run an action of this process."""

    def trainable(self, stage: int, replica: int) -> Arrays:
        return [self.values[replica][id(v)] for v in self.layout.stages[stage].trainable]

    def forward_arguments(
        self, action: Action, replica: int, index: int
    ) -> tuple[Arrays, Received, StageInputs]:
        """Return the arguments of a stage's forward pass.

        Args:
            action: the forward pass.
            replica: the replica.
            index: index of the micro-batch in the chunk.
        """
        number, micro_batch = action.stage, action.micro_batch
        stage, rank = self.layout.stages[number], self.layout.mapping[number]
        received = self.communication.receive_forward(number, micro_batch, replica)
        loss = self.communication.receive_loss(number, micro_batch, replica)
        inputs = StageInputs(
            [self.values[replica][id(v)] for v in stage.non_trainable],
            data_position(self.chunk, rank, index, replica) if stage.reads_data else (),
            self.metrics[replica] if stage.is_last else [],
            self._zero[replica] if loss is None else loss,
        )
        return self.trainable(number, replica), received, inputs

    def store(self, stage: int, replica: int, non_trainable: Arrays, metrics: Arrays) -> None:
        """Store the state that a forward pass has changed, for the next micro-batch."""
        variables = self.layout.stages[stage].non_trainable
        pairs = zip(variables, non_trainable, strict=True)
        self.values[replica] |= {id(variable): value for variable, value in pairs}
        if self.layout.stages[stage].is_last:
            self.metrics[replica] = metrics

    def without_seed_offset(self, replica: int, seed: jax.Array) -> jax.Array:
        """Return the seed of the first replica, from which the next call continues."""
        return seed - self.layout.seed_offset(replica, seed)

    def write_metrics(self) -> Arrays:
        """Assign the metrics of all replicas to their variables, and return them."""
        totals = total_metrics(self.metrics, self.layout, self.chunk)
        placed = [self.layout.common_group.put(total) for total in totals]
        keras_bridge.assign(self.layout.variables.parts.metrics, placed)
        return totals
