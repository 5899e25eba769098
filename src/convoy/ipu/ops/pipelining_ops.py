"""Pipelines of functions, and their options."""

from convoy.ipu import notice
from convoy.ipu.enums import PipelineSchedule, RecomputationMode
from convoy.ipu.pipelining.op import pipeline
from convoy.ipu.pipelining.options import OptimizerFunctionOutput, PipelineStageOptions
from convoy.types import PyTree

__all__ = [
    "OptimizerFunctionOutput",
    "PipelineSchedule",
    "PipelineStageOptions",
    "RecomputationMode",
    "pipeline",
    "recomputation_checkpoint",
]


def recomputation_checkpoint(tensors: PyTree, name: str | None = None) -> PyTree:
    """Return tensors unchanged: a stage that recomputes keeps its inputs and nothing else."""
    notice.no_effect("pipelining_ops", {"recomputation_checkpoint": True})
    return tensors
