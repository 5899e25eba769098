"""Pipeline stages, layers and optimizers for Keras models under an `IPUStrategy`."""

from convoy.ipu.enums import ReplicatedMetricReductionMethod
from convoy.ipu.keras import layers, optimizers
from convoy.ipu.keras.pipeline_stages import (
    FunctionalLayerPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    PipelineStage,
    SequentialLayerPipelineStageAssignment,
)

__all__ = [
    "FunctionalLayerPipelineStageAssignment",
    "ModelLayerPipelineStageAssignment",
    "PipelineStage",
    "ReplicatedMetricReductionMethod",
    "SequentialLayerPipelineStageAssignment",
    "layers",
    "optimizers",
]
