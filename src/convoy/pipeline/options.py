"""What a user says about a model's pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import keras
from convoy.keras_bridge import graph_calls
from convoy.pipeline.body import reads_data
from convoy.pipeline.generate import check_mapping, generate
from convoy.pipeline.placement import PipelinePlacement
from convoy.pipeline.schedule import Schedule
from convoy.pipeline.split import calls_of, check_assignment, split_by_name
from convoy.pipeline.stage import stages_of

if TYPE_CHECKING:
    from convoy.engine.plan import Plan

_ATTRIBUTE = "_convoy_stages"


@dataclass(frozen=True)
class Pipelining:
    """How a model in stages is run.

    Attributes:
        schedule: the name of a schedule, or one of your own.
        device_mapping: the device of each stage; by default one for each.
        recompute: whether stages keep only their input, and run forwards once more before they run
            backwards. The last never does, as its backward pass follows at once.
    """

    schedule: str | Schedule = "interleaved"
    device_mapping: tuple[int, ...] | None = None
    recompute: bool = False

    def plan_for(self, model: keras.Model, micro_batches: int) -> Schedule:
        """Return the schedule for a model that has stages.

        Raises:
            ValueError: if the schedule of your own has other stages or micro-batches.
        """
        stages = max(stages_of_model(model) or [0]) + 1
        if isinstance(self.schedule, str):
            return generate(self.schedule, stages, micro_batches, self.device_mapping)
        found = self.schedule.stages, self.schedule.micro_batches
        if found != (stages, micro_batches):
            raise ValueError(
                f"The schedule has {found[0]} stages and {found[1]} micro-batches, but the model "
                f"has {stages} stages and gradient_accumulation={micro_batches}. Make another one."
            )
        return self.schedule

    def width(self, model: keras.Model) -> int:
        """Return how many devices one replica takes."""
        if isinstance(self.schedule, Schedule):
            return self.schedule.devices
        stages = max(stages_of_model(model) or [0]) + 1
        return max(check_mapping(self.device_mapping, stages)) + 1

    def programs(self, model: keras.Model, plan: Plan) -> Any:
        """Return what trains the model."""
        from convoy.pipeline.run import PipelinePrograms  # it imports the engine, which asks here

        return PipelinePrograms(model, plan, self)


def pipeline_placement(model: keras.Model, pipelining: Pipelining, plan: Plan) -> PipelinePlacement:
    """Divide a plan's devices into replicas of a pipeline.

    Raises:
        ValueError: if one replica needs more devices than there are.
    """
    mesh = plan.placement.mesh
    devices = tuple(mesh.devices.flat) if mesh is not None else (jax.devices()[0],)
    width = pipelining.width(model)
    if width > len(devices):
        raise ValueError(
            f"{model.name!r} is in stages on {width} devices, but the strategy has {len(devices)}. "
            f"Pass devices={width} or more, fewer stages, or a device_mapping that shares devices."
        )
    calls = calls_of(model)
    stages = stages_of(model, calls, stages_of_model(model) or [0] * len(calls))
    mapping = pipelining.plan_for(model, plan.accumulation.count).mapping
    last = len(stages) - 1
    readers = {mapping[s.number] for s in stages if reads_data(s, s.number == last, model)}
    return PipelinePlacement(devices, width, sorted(readers))


def split(model: keras.Model, names: Sequence[str]) -> keras.Model:
    """Cut a model into stages, for devices of their own.

    Args:
        model: a functional or sequential model; it is changed in place.
        names: the layers with which the second and later stages begin.

    Returns:
        The same model.

    Raises:
        ValueError: if a layer does not exist, or layers are not in the order in which they run.

    Example:
    ```python
    strategy = convoy.Strategy(devices=2, gradient_accumulation=16)
    with strategy.scope():
        model = keras.applications.ResNet50(weights=None)
        model.compile("sgd", "sparse_categorical_crossentropy")
    convoy.split(model, ["conv4_block1_1_conv"])
    ```
    """
    set_stages(model, split_by_name(model, names))
    return model


def set_stages(model: keras.Model, stages: list[int]) -> None:
    """Give every call of a model its stage, after a check."""
    check_assignment(calls_of(model), stages)
    # Not through `setattr`: Keras would take it for a change of the model's state.
    vars(model)[_ATTRIBUTE] = list(stages)


def stages_of_model(model: keras.Model) -> list[int] | None:
    """Return the stage of every call of a model, if it has more than one.

    Raises:
        ValueError: if some of its layers were made in a `PipelineStage`, but not in a way that
            makes stages.
    """
    stages = vars(model).get(_ATTRIBUTE)
    if stages is None:
        calls = graph_calls(model) or []
        marks = [call.mark for call in calls]
        if all(mark is None for mark in marks):
            return None
        check_assignment(calls, marks)
        set_stages(model, [mark for mark in marks if mark is not None])
        stages = vars(model)[_ATTRIBUTE]
    return stages if max(stages) > 0 else None


def reset_stages(model: keras.Model) -> None:
    """Have a model in one piece, whatever its layers say."""
    vars(model)[_ATTRIBUTE] = [0] * len(calls_of(model))
