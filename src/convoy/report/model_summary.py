"""A summary of a model and its parallel configuration."""

from collections.abc import Iterator
from typing import Any

import keras
from convoy import keras_bridge
from convoy.engine.data.placement import tree_bytes
from convoy.engine.execution_config import ExecutionConfig
from convoy.pipeline.stages import stage_assignment
from convoy.types import Json


def summarize(model: keras.Model, config: ExecutionConfig) -> Json:
    """Return a model's layers, sizes and parallel configuration."""
    stages = stage_assignment(model)
    optimizer = getattr(model, "optimizer", None)
    pipeline: Any = config.pipeline
    return {
        "name": model.name,
        "parameters": model.count_params(),
        "bytes": {
            "weights": _bytes(model.trainable_variables),
            "statistics": _bytes(model.non_trainable_variables),
            "optimizer": _bytes(optimizer.variables) if optimizer is not None else 0,
        },
        "replicas": config.replicas,
        "gradient_accumulation": config.gradient_accumulation,
        "steps_per_execution": getattr(model, "steps_per_execution", 1),
        "stages": 1 if stages is None else max(stages) + 1,
        "schedule": "" if pipeline is None else str(getattr(pipeline, "schedule", ""))[:40],
        "layers": [_layer(layer) for layer in _layers(model)],
    }


def _layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        else:
            yield layer


def _layer(layer: keras.layers.Layer) -> Json:
    try:
        shape: Any = keras.tree.map_structure(lambda tensor: list(tensor.shape), layer.output)
    except (AttributeError, ValueError):  # The layer is called several times.
        shape = None
    parameters = layer.count_params() if layer.built else 0
    return {
        "name": layer.name,
        "type": type(layer).__name__,
        "output": shape,
        "parameters": parameters,
    }


def _bytes(variables: list[Any]) -> int:
    return tree_bytes(keras_bridge.values(list(variables)))
