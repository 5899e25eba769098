"""Pipeline stages of layers: `PipelineStage`, and the assignment as objects and as numbers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import convoy
import keras
from convoy import keras_bridge
from convoy.ipu.notice import log
from convoy.pipeline.stages import calls_of, check_assignment
from convoy.units import format_table


class PipelineStage(convoy.PipelineStage):
    """Puts layers into a pipeline stage: those that are made or called in the block.

    Args:
        stage: index of the stage, from 0.

    Raises:
        RuntimeError: outside the scope of an `IPUStrategy`, or inside another stage.
    """

    def __enter__(self) -> Self:
        from convoy.ipu import ipu_strategy  # which imports this module

        strategy = ipu_strategy.current()
        if strategy is None:
            raise RuntimeError(
                f"PipelineStage({self.stage}) is outside of an IPUStrategy's scope. Put it inside."
            )
        if not strategy.takes_pipeline_stages:
            raise RuntimeError(
                f"PipelineStage({self.stage}) is inside of a {type(strategy).__name__}. Call the "
                "model's set_pipeline_stage_assignment() instead."
            )
        return super().__enter__()


@dataclass
class SequentialLayerPipelineStageAssignment:
    """The stage of a layer of a sequential model."""

    layer: keras.Operation
    pipeline_stage: int | None = None

    is_nested_model = False


@dataclass
class FunctionalLayerPipelineStageAssignment:
    """The stage of one call of a layer of a functional model."""

    layer: keras.Operation
    node_index: int
    pipeline_stage: int | None = None
    inbound_layers: list[keras.Operation] = field(default_factory=list, repr=False)

    is_nested_model = False


@dataclass
class ModelLayerPipelineStageAssignment(FunctionalLayerPipelineStageAssignment):
    """The stage of one call of a layer of a subclassed model."""


Assignment = SequentialLayerPipelineStageAssignment | FunctionalLayerPipelineStageAssignment


def assignments(model: keras.Model, stages: Sequence[int | None] | None) -> list[Assignment]:
    """Return an assignment for each call of a layer, in the order of execution.

    Args:
        model: a Keras model.
        stages: the stage of each call; `None` if they have none.

    Raises:
        RuntimeError: if it is a subclassed model that was not built.
    """
    if keras_bridge.is_subclassed(model) and not model.built:
        raise RuntimeError(
            f"{model.name!r} is a subclassed model that was not built, so its layers are not known "
            "yet. Call model.build(input_shape), or the model on some inputs, first."
        )
    if isinstance(model, keras.Sequential):
        found: list[Assignment] = list(map(SequentialLayerPipelineStageAssignment, _layers(model)))
    else:
        found = list(_functional(model))
    if stages is not None and len(stages) != len(found):
        log.info(
            f"{model.name!r} has other layers than when its stages were assigned. Call "
            "set_pipeline_stage_assignment() again."
        )
        stages = None
    for assignment, stage in zip(found, stages or [None] * len(found), strict=True):
        assignment.pipeline_stage = stage
    return found


def is_all_in_the_first_stage(model: keras.Model) -> bool:
    """Return whether all layers were made or called in `PipelineStage(0)`."""
    calls = keras_bridge.graph_calls(model, into_nested=True) or []
    return {call.mark for call in calls} == {0}


def _layers(model: keras.Sequential) -> list[keras.Operation]:
    """Return the layers of a sequential model, including those of nested models."""
    if any(isinstance(layer, keras.Model) for layer in model.layers):
        return [call.operation for call in calls_of(model)]
    return list(model.layers)


def _functional(model: keras.Model) -> list[FunctionalLayerPipelineStageAssignment]:
    kind: type[FunctionalLayerPipelineStageAssignment] = FunctionalLayerPipelineStageAssignment
    if keras_bridge.is_subclassed(model):
        kind = ModelLayerPipelineStageAssignment
    found = []
    made_by: dict[int, keras.Operation] = {}
    calls: Counter[int] = Counter()
    for call in calls_of(model):
        sources = [made_by[tensor] for tensor in call.inputs if tensor in made_by]
        index = calls[id(call.operation)]
        found.append(kind(call.operation, index, inbound_layers=sources))
        calls[id(call.operation)] += 1
        made_by |= dict.fromkeys(call.outputs, call.operation)
    return found


def stage_numbers(model: keras.Model, given: object) -> list[int]:
    """Check the argument of `set_pipeline_stage_assignment`; return the stage of each call.

    Raises:
        ValueError: if it is not a list with one entry of the right type for each layer, in the
            order of execution, or a layer reads the output of a later stage.
    """
    if not isinstance(given, list):
        raise ValueError(f"The stage assignment is of type {type(given).__name__}. Pass a list.")
    expected = assignments(model, None)
    if len(given) != len(expected):
        raise ValueError(
            f"{len(given)} stages were given for the {len(expected)} layers of {model.name!r}. "
            "Pass one for each layer, in the order of execution, without input layers."
        )
    sequential = isinstance(model, keras.Sequential)
    stages = [
        _stage(entry, wanted, sequential) for entry, wanted in zip(given, expected, strict=True)
    ]
    if sequential:
        _check_in_order(_layers(model), stages)
    else:
        check_assignment(calls_of(model), stages)
    return stages


def _stage(entry: Any, wanted: Assignment, sequential: bool) -> int:
    name = wanted.layer.name
    if sequential and type(entry) is int:
        return entry
    if type(entry) is not type(wanted):
        also = "an int or " if sequential else ""
        raise ValueError(
            f"{entry!r} was passed as the stage of {name!r}. Pass {also}a {type(wanted).__name__}, "
            "as get_pipeline_stage_assignment() returns."
        )
    in_order = "Keep the order of get_pipeline_stage_assignment()."
    if entry.layer is not wanted.layer:
        raise ValueError(f"{entry.layer.name!r} was passed where {name!r} runs. {in_order}")
    # Calls of one layer differ only in their index.
    given, number = (getattr(part, "node_index", None) for part in (entry, wanted))
    if given != number:
        raise ValueError(
            f"Call {given} of {name!r} was passed where its call {number} runs. {in_order}"
        )
    if entry.pipeline_stage is None:
        raise ValueError(f"Layer {name!r} has no stage. Set its pipeline_stage.")
    return int(entry.pipeline_stage)


def _check_in_order(layers: list[keras.Operation], stages: list[int]) -> None:
    before = 0
    for layer, stage in zip(layers, stages, strict=True):
        first = layer is layers[0]
        if stage not in ((0,) if first else (before, before + 1)):
            wanted = "0" if first else f"{before} or {before + 1}"
            raise ValueError(
                f"Layer {layer.name!r} has stage {stage}. Pass {wanted}: stages of a sequential "
                "model follow each other from 0."
            )
        before = stage


def summary(model: keras.Model, found: Sequence[Assignment], line_length: int | None) -> list[str]:
    """Return the lines of a table of layers and their stages."""
    header: tuple[str, ...] = "Layer (type) (node index)", "Input layers", "Pipeline stage"
    width = 89
    if isinstance(model, keras.Sequential):
        header, width = ("Layer (type)", "Pipeline stage"), 60
    first, *lines = format_table([header, *map(_row, found)])
    width = line_length or max(width, *map(len, lines))
    rule = "_" * width
    title = [f"Model: {model.name!r}", rule, first, "=" * width]
    return [*title, *(line[:width] for line in lines), rule]


def _row(entry: Assignment) -> tuple[str, ...]:
    label, stage = f"{entry.layer.name} ({type(entry.layer).__name__})", str(entry.pipeline_stage)
    if isinstance(entry, SequentialLayerPipelineStageAssignment):
        return label, stage
    inputs = ", ".join(layer.name for layer in entry.inbound_layers)
    return f"{label} ({entry.node_index})", inputs, stage
