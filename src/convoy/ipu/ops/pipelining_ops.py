"""Pipelines of functions, and the words for them."""

from __future__ import annotations

from typing import Any

from convoy.ipu import notice
from convoy.ipu.enums import PipelineSchedule, RecomputationMode
from convoy.ipu.pipelining.op import pipeline
from convoy.ipu.pipelining.words import OptimizerFunctionOutput, PipelineStageOptions

__all__ = [
    "OptimizerFunctionOutput",
    "PipelineSchedule",
    "PipelineStageOptions",
    "RecomputationMode",
    "pipeline",
    "recomputation_checkpoint",
]


def recomputation_checkpoint(tensors: Any, name: str | None = None) -> Any:
    """Return tensors as they are: a stage that recomputes keeps its input, and nothing else."""
    del name
    notice.without_effect(["recomputation_checkpoint"], "pipelining_ops")
    return tensors
