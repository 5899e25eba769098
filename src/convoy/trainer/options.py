"""Options and pipeline stages of one model, in addition to the options of its strategy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from convoy.engine.execution_config import Reduction
from convoy.engine.prepared_model import DeferredSplit
from convoy.pipeline import Schedule, Timeline
from convoy.pipeline.config import PipelineConfig
from convoy.pipeline.runner.base import PipelineRunner
from convoy.pipeline.stages import (
    calls_of,
    reset_stage_assignment,
    set_stage_assignment,
    stage_assignment,
)
from convoy.trainer.engine_model import EngineModel


class ModelOptions(NamedTuple):
    """The options of one model, as its copies take them over."""

    gradient_accumulation: int
    reduction: Reduction
    dtype: str | None
    asynchronous_callbacks: bool
    pipelining: PipelineConfig
    stages: list[int] | None
    deferred_split: DeferredSplit | None


class OptionMethods:
    """The methods that set options of a model, and that set and show its pipeline stages."""

    added = (
        "set_asynchronous_callbacks",
        "set_gradient_accumulation",
        "set_pipelining_options",
        "get_pipeline_timeline",
        "set_pipeline_stage_assignment",
        "get_pipeline_stage_assignment",
        "reset_pipeline_stage_assignment",
        "print_pipeline_stage_assignment_summary",
    )

    def __init__(self, engine_model: EngineModel) -> None:
        self.engine_model = engine_model
        self.model = engine_model.model
        self.host_loop = engine_model.host_loop

    def set_gradient_accumulation(
        self,
        gradient_accumulation: int,
        *,
        reduction: Reduction | None = None,
        dtype: str | None = None,
    ) -> None:
        """Set the gradient accumulation of this model.

        Args:
            gradient_accumulation: micro-batches per weight update and replica.
            reduction: `"mean"` or `"sum"` over these micro-batches; by default the strategy's.
            dtype: dtype of the accumulated gradients; by default the dtype of each gradient.
        """
        config = self.host_loop.config
        self.host_loop.use(
            replace(
                config,
                gradient_accumulation=gradient_accumulation,
                accumulation_reduction=reduction or config.reduction,
                accumulation_dtype=dtype,
            )
        )

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Choose whether callbacks are called for every step while the devices continue.

        They are then called from another thread when results arrive, for every step and every
        replica. For accumulated micro-batches, they are called after the weight update. Each weight
        update is a separate device call. `stop_training` still takes effect only after every
        `steps_per_execution` steps.

        Args:
            asynchronous: whether callbacks are called for every step; by default, they are called
                once per device call.
        """
        self.host_loop.asynchronous_callbacks = asynchronous

    def set_pipelining_options(
        self,
        *,
        gradient_accumulation: int | None = None,
        schedule: str | Schedule = "1f1b",
        device_mapping: Sequence[int] | None = None,
        activation_checkpointing: bool = False,
        record: bool = False,
    ) -> None:
        """Set the options of pipeline parallelism, which apply if this model has several stages.

        Args:
            gradient_accumulation: micro-batches per weight update and replica; by default the
                strategy's.
            schedule: `"1f1b"`, `"gpipe"`, `"zero-bubble"`, `"sequential"`, or a `Schedule` of your
                own.
            device_mapping: device of each stage; by default, each stage has its own device.
            activation_checkpointing: whether stages keep only their input for the backward pass.
            record: whether the last weight update of every device call is timed, for
                `get_pipeline_timeline`.
        """
        if gradient_accumulation is not None:
            self.set_gradient_accumulation(gradient_accumulation)
        mapping = None if device_mapping is None else tuple(device_mapping)
        self.engine_model.pipelining = PipelineConfig(
            schedule, mapping, activation_checkpointing, record
        )

    def get_pipeline_timeline(self) -> Timeline | None:
        """Return the timeline of the last weight update that was timed."""
        runner = self.host_loop.runners.find("train")
        return runner.timeline if isinstance(runner, PipelineRunner) else None

    def set_pipeline_stage_assignment(self, stages: list[int]) -> None:
        """Set the stage of every layer, in the order in which layers run."""
        set_stage_assignment(self.model, stages)

    def get_pipeline_stage_assignment(self) -> list[int] | None:
        """Return the stage of every layer, or `None` if the model has one stage."""
        return stage_assignment(self.model)

    def reset_pipeline_stage_assignment(self) -> None:
        """Put all layers into one stage."""
        reset_stage_assignment(self.model)

    def print_pipeline_stage_assignment_summary(self) -> None:
        """Print the stage of every layer."""
        stages = stage_assignment(self.model)
        calls = calls_of(self.model)
        for call, stage in zip(calls, stages or [0] * len(calls), strict=True):
            print(f"stage {stage}  {type(call.operation).__name__:24} {call.name}")

    def options(self) -> ModelOptions:
        """Return the options of this model."""
        config = self.host_loop.config
        return ModelOptions(
            config.gradient_accumulation,
            config.accumulation_reduction,
            config.accumulation_dtype,
            self.host_loop.asynchronous_callbacks,
            self.engine_model.pipelining,
            self.engine_model.prepared.stages,
            self.engine_model.prepared.deferred_split,
        )

    def use_options(self, options: ModelOptions) -> None:
        """Use the options of a model that this one is a copy of."""
        self.set_gradient_accumulation(
            options.gradient_accumulation, reduction=options.reduction, dtype=options.dtype
        )
        self.host_loop.asynchronous_callbacks = options.asynchronous_callbacks
        self.engine_model.pipelining = options.pipelining
        self.engine_model.prepared.stages = options.stages
        self.engine_model.prepared.deferred_split = options.deferred_split
