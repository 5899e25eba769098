"""What Keras models can do under an `IPUStrategy`."""

from convoy.ipu.enums import ReplicatedMetricReductionMethod
from convoy.ipu.keras import layers, optimizers
from convoy.ipu.keras.assignment import (
    FunctionalLayerPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
)
from convoy.ipu.keras.pipeline_stage import PipelineStage

__all__ = [
    "FunctionalLayerPipelineStageAssignment",
    "ModelLayerPipelineStageAssignment",
    "PipelineStage",
    "ReplicatedMetricReductionMethod",
    "SequentialLayerPipelineStageAssignment",
    "layers",
    "optimizers",
]
