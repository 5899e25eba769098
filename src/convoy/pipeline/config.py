"""`PipelineConfig`: the options of a pipeline, and the devices and the runner that they require."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import jax
import keras
from convoy import distributed
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.state import Mode
from convoy.pipeline.device_layout import PipelinePlacement
from convoy.pipeline.schedule import Schedule
from convoy.pipeline.schedules import DEFAULT, canonical_name, check_mapping, generate
from convoy.pipeline.stages import calls_of, make_stages, stage_assignment
from convoy.pipeline.validation import validate

if TYPE_CHECKING:
    from convoy.engine.chunk_runner import ModelRunner
    from convoy.engine.execution_config import ExecutionConfig
    from convoy.engine.observer import Observer

logger = logging.getLogger("convoy.pipeline")


@dataclass(frozen=True)
class PipelineConfig:
    """Options of a model in pipeline stages.

    Attributes:
        schedule: name of a schedule, or a custom schedule.
        device_mapping: device of each stage; by default each stage has its own.
        activation_checkpointing: whether stages keep only their inputs, and run the forward pass
            again before the backward pass. The last stage never does, because its backward pass
            follows immediately.
        record: whether to measure a timeline of weight updates.
    """

    schedule: str | Schedule = DEFAULT
    device_mapping: tuple[int, ...] | None = None
    activation_checkpointing: bool = False
    record: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.schedule, str):
            canonical_name(self.schedule)
        else:
            validate(self.schedule)

    def schedule_for(self, model: keras.Model, micro_batches: int) -> Schedule:
        """Return the schedule for a model in stages.

        Raises:
            ValueError: if a custom schedule has another number of stages or micro-batches.
        """
        stages = max(stage_assignment(model) or [0]) + 1
        if isinstance(self.schedule, str):
            return generate(self.schedule, stages, micro_batches, self.device_mapping)
        found = self.schedule.stages, self.schedule.micro_batches
        if found != (stages, micro_batches):
            raise ValueError(
                f"The schedule is for {found[0]} stages and {found[1]} micro-batches, but the "
                f"model has {stages} stages and gradient_accumulation={micro_batches}. Pass a "
                "schedule for these numbers."
            )
        return self.schedule

    def devices_per_replica(self, model: keras.Model) -> int:
        if isinstance(self.schedule, Schedule):
            return self.schedule.devices
        stages, mapping = max(stage_assignment(model) or [0]) + 1, self.device_mapping
        if mapping is not None and len(mapping) < stages:
            raise ValueError(
                f"device_mapping={list(mapping)} has {len(mapping)} entries, but {model.name!r} "
                f"has {stages} stages: none is for stage {len(mapping)}, which begins with layer "
                f"{_first_layer(model, len(mapping))!r}. Pass one device for each."
            )
        return max(check_mapping(mapping, stages)) + 1

    def make_runner(
        self, model: keras.Model, config: ExecutionConfig, mode: Mode, observer: Observer
    ) -> ModelRunner:
        """Return the runner of a model in stages."""
        # Imported here, because the runners import the engine, whose configuration refers to this
        # class.
        from convoy.pipeline.runner.inference import InferenceRunner
        from convoy.pipeline.runner.training import TrainingRunner

        if mode == "train":
            # With the sequential schedule, idle devices are expected.
            sequential = (
                isinstance(self.schedule, str) and canonical_name(self.schedule) == "sequential"
            )
            if not sequential and distributed.index() == 0:
                _warn_of_bubble(self.devices_per_replica(model), config.gradient_accumulation)
            return TrainingRunner(model, config, self, observer)
        return InferenceRunner(model, config, self, mode, observer)


@cache
def _warn_of_bubble(devices: int, micro_batches: int) -> None:
    """Warn once if there are too few micro-batches to keep all devices busy."""
    if micro_batches < devices:
        logger.warning(
            "A pipeline on %d devices trains with %s per weight update, so its devices mostly wait "
            "for each other. Pass gradient_accumulation=%d or more, with a smaller batch_size.",
            devices,
            "1 micro-batch" if micro_batches == 1 else f"{micro_batches} micro-batches",
            4 * devices,
        )


def pipeline_placement(
    model: keras.Model, pipeline: PipelineConfig, config: ExecutionConfig
) -> PipelinePlacement:
    """Divide the devices of a model's strategy into replicas of a pipeline.

    Raises:
        ValueError: if one replica needs more devices than there are, or replicas do not divide
            evenly over processes.
    """
    devices = PreparedModel.of(model).devices or (jax.devices()[0],)
    devices_per_replica = pipeline.devices_per_replica(model)
    mapping = pipeline.schedule_for(model, config.gradient_accumulation).mapping
    if devices_per_replica > len(devices):
        missing = next(stage for stage, rank in enumerate(mapping) if rank >= len(devices))
        raise ValueError(
            f"{model.name!r} is in stages on {devices_per_replica} devices, but the strategy has "
            f"{len(devices)}, so none for the stage that begins with layer "
            f"{_first_layer(model, missing)!r}. Pass devices={devices_per_replica} or more, fewer "
            "stages, or a device_mapping that shares devices."
        )
    own = sum(device.process_index == distributed.index() for device in devices)
    if distributed.count() > 1 and (own % devices_per_replica and devices_per_replica % own):
        raise ValueError(
            f"{model.name!r} is in stages on {devices_per_replica} devices, which do not divide "
            f"over processes of {own} devices each: one would have parts of two replicas. Launch "
            f"with --devices-per-replica {devices_per_replica}."
        )
    if len(devices) % devices_per_replica and distributed.count() > 1:
        raise ValueError(
            f"{len(devices)} devices in {distributed.count()} processes do not make whole replicas "
            f"of {devices_per_replica} devices, as {model.name!r} needs. Launch with "
            f"--devices-per-replica {devices_per_replica}."
        )
    calls = calls_of(model)
    stages = make_stages(model, calls, stage_assignment(model) or [0] * len(calls))
    readers = {mapping[stage.number] for stage in stages if stage.reads_data}
    return PipelinePlacement(devices, devices_per_replica, sorted(readers))


def _first_layer(model: keras.Model, stage: int) -> str:
    return calls_of(model)[(stage_assignment(model) or [0]).index(stage)].name
