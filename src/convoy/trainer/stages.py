"""The pipeline stages of a model's layers."""

from __future__ import annotations

from convoy.pipeline import Timeline
from convoy.pipeline.stages import (
    calls_of,
    reset_stage_assignment,
    set_stage_assignment,
    stage_assignment,
)
from convoy.trainer.engine_model import EngineModel


class StageMethods:
    """The methods that assign layers to pipeline stages, and show them."""

    added = (
        "get_pipeline_timeline",
        "set_pipeline_stage_assignment",
        "get_pipeline_stage_assignment",
        "reset_pipeline_stage_assignment",
        "print_pipeline_stage_assignment_summary",
    )

    def __init__(self, engine_model: EngineModel) -> None:
        self.model = engine_model.model
        self.runner = engine_model.runner

    def get_pipeline_timeline(self) -> Timeline | None:
        """Return the timeline of the last weight update that was timed."""
        runner = self.runner.programs.find("train")
        return getattr(runner, "timeline", None)

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
