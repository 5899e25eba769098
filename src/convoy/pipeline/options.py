"""What a user says about a model's pipeline."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import jax
import keras
from convoy import devices as device_choice
from convoy import distributed
from convoy.engine.data.input import DEFAULT_BATCH
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.state import Mode
from convoy.keras_bridge import model_graph
from convoy.pipeline.assignment import calls_of, check_assignment, split_by_name
from convoy.pipeline.balance.automatic import split_by_cost
from convoy.pipeline.placement import PipelinePlacement
from convoy.pipeline.runner.stage_function import reads_data
from convoy.pipeline.schedule import Schedule
from convoy.pipeline.schedules import DEFAULT, canonical_name, check_mapping, generate
from convoy.pipeline.stage import stages_of
from convoy.pipeline.subclassed_stages import find_stages
from convoy.pipeline.validation import validate

if TYPE_CHECKING:
    from convoy.engine.chunk_runner import ModelRunner
    from convoy.engine.execution_config import ExecutionConfig
    from convoy.engine.observer import Observer

logger = logging.getLogger("convoy.pipeline")


@dataclass(frozen=True)
class Pipelining:
    """How a model in stages is run.

    Attributes:
        schedule: the name of a schedule, or one of your own.
        device_mapping: the device of each stage; by default one for each.
        recompute: whether stages keep only their input, and run forwards once more before they run
            backwards. The last never does, as its backward pass follows at once.
        record: whether to note when each action of a weight update was run.
    """

    schedule: str | Schedule = DEFAULT
    device_mapping: tuple[int, ...] | None = None
    recompute: bool = False
    record: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.schedule, str):
            canonical_name(self.schedule)
        else:
            validate(self.schedule)

    def schedule_for(self, model: keras.Model, micro_batches: int) -> Schedule:
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
        assignment = stages_of_model(model) or [0]
        stages, mapping = max(assignment) + 1, self.device_mapping
        if mapping is not None and len(mapping) < stages:
            raise ValueError(
                f"device_mapping={list(mapping)} has {len(mapping)} entries, but {model.name!r} "
                f"has {stages} stages: none is for stage {len(mapping)}, which begins with layer "
                f"{_first_layer(model, len(mapping))!r}. Pass one device for each."
            )
        return max(check_mapping(mapping, stages)) + 1

    def programs(
        self, model: keras.Model, config: ExecutionConfig, mode: Mode, observer: Observer
    ) -> ModelRunner:
        """Return the runner of the model in one mode."""
        # They import the engine, which asks here.
        from convoy.pipeline.runner.inference import ForwardPrograms
        from convoy.pipeline.runner.training import PipelinePrograms

        if mode == "train":
            # With that schedule they are meant to.
            in_turn = (
                isinstance(self.schedule, str) and canonical_name(self.schedule) == "sequential"
            )
            if not in_turn and distributed.index() == 0:
                _warn_of_waiting(self.width(model), config.accumulation.count)
            return PipelinePrograms(model, config, self, observer)
        return ForwardPrograms(model, config, self, mode, observer)


@cache
def _warn_of_waiting(devices: int, micro_batches: int) -> None:
    """Warn once if there are too few micro-batches for all devices to have work."""
    if micro_batches < devices:
        logger.warning(
            "A pipeline on %d devices trains with %s per weight update, so its devices mostly wait "
            "for each other. Pass gradient_accumulation=%d or more, with a smaller batch_size.",
            devices,
            "1 micro-batch" if micro_batches == 1 else f"{micro_batches} micro-batches",
            4 * devices,
        )


def pipeline_placement(
    model: keras.Model, pipelining: Pipelining, config: ExecutionConfig
) -> PipelinePlacement:
    """Divide a plan's devices into replicas of a pipeline.

    Raises:
        ValueError: if one replica needs more devices than there are.
    """
    devices = devices_of(model)
    width = pipelining.width(model)
    mapping = pipelining.schedule_for(model, config.accumulation.count).mapping
    if width > len(devices):
        homeless = next(stage for stage, place in enumerate(mapping) if place >= len(devices))
        raise ValueError(
            f"{model.name!r} is in stages on {width} devices, but the strategy has {len(devices)}, "
            f"so none for the stage that begins with layer {_first_layer(model, homeless)!r}. "
            f"Pass devices={width} or more, fewer stages, or a device_mapping that shares devices."
        )
    own = sum(device.process_index == distributed.index() for device in devices)
    if distributed.count() > 1 and (own % width and width % own):
        raise ValueError(
            f"{model.name!r} is in stages on {width} devices, which do not divide over processes "
            f"of {own} devices each: one would have parts of two replicas. Launch with "
            f"--devices-per-replica {width}."
        )
    if width * (len(devices) // width) < len(devices) and distributed.count() > 1:
        raise ValueError(
            f"{len(devices)} devices in {distributed.count()} processes do not make whole replicas "
            f"of {width} devices, as {model.name!r} needs. Launch with --devices-per-replica "
            f"{width}."
        )
    calls = calls_of(model)
    stages = stages_of(model, calls, stages_of_model(model) or [0] * len(calls))
    last = len(stages) - 1
    readers = {mapping[s.number] for s in stages if reads_data(s, s.number == last, model)}
    return PipelinePlacement(devices, width, sorted(readers))


def _first_layer(model: keras.Model, stage: int) -> str:
    return calls_of(model)[(stages_of_model(model) or [0]).index(stage)].name


def split(
    model: keras.Model,
    stages: Sequence[str] | int | Literal["auto"],
    *,
    batch_size: int = DEFAULT_BATCH,
) -> keras.Model:
    """Cut a model into stages, for devices of their own.

    Args:
        model: it is changed in place; a subclassed one must be built.
        stages: the layers with which the second and later stages begin, `"nested/layer"` for one
            inside of a nested model. Or how many stages, or `"auto"` for as many as the strategy
            has devices: then every layer is timed, and the cut is the one whose slowest stage is
            fastest.
        batch_size: samples of a micro-batch, to time layers with.

    Returns:
        The same model.

    Raises:
        ValueError: if Convoy does not run the model, a layer does not exist, layers are not in the
            order in which they run, or the model has no such cut.

    Example:
    ```python
    strategy = convoy.Strategy(devices=2, gradient_accumulation=16)
    with strategy.scope():
        model = keras.applications.ResNet50(weights=None)
        model.compile("sgd", "sparse_categorical_crossentropy")
    convoy.split(model, stages="auto", batch_size=4)
    ```
    """
    if not PreparedModel.of(model).devices:
        raise ValueError(
            f"{model.name!r} is a stock Keras model, which would be trained in one piece. Make it "
            "in a strategy's scope, or pass it to convoy.prepare() first."
        )
    if stages == "auto":
        stages = device_choice.per_replica() or len(devices_of(model))
    if isinstance(stages, int) and not isinstance(stages, bool):
        _check_numbers(stages, batch_size)
        own = [d for d in devices_of(model) if d.process_index == distributed.index()]
        # What is measured differs, the cut must not.
        cut = distributed.from_first(split_by_cost(model, stages, batch_size, own))
        set_stages(model, cut)
    elif isinstance(stages, Sequence) and not isinstance(stages, str):
        set_stages(model, split_by_name(model, stages))
    else:
        raise ValueError(
            f"stages={stages!r} says not where to cut. Pass a list of names of layers, a number of "
            "stages, or 'auto'."
        )
    return model


def _check_numbers(stages: int, batch_size: int) -> None:
    for name, value, unit in (("stages", stages, "stages"), ("batch_size", batch_size, "samples")):
        if value < 1:
            raise ValueError(f"{name}={value} is not a number of {unit}. Pass 1 or more.")


def set_devices(model: keras.Model, devices: Sequence[jax.Device]) -> None:
    """Tell a model which devices its strategy has."""
    PreparedModel.of(model).devices = tuple(devices)


def devices_of(model: keras.Model) -> tuple[jax.Device, ...]:
    """Return the devices of a model's strategy, else the first there is."""
    return PreparedModel.of(model).devices or (jax.devices()[0],)


def set_stages(model: keras.Model, stages: list[int]) -> None:
    """Give every call of a model its stage, after a check."""
    check_assignment(calls_of(model), stages)
    PreparedModel.of(model).stages = list(stages)


def stages_of_model(model: keras.Model) -> list[int] | None:
    """Return the stage of every call of a model, if it has more than one.

    Raises:
        ValueError: if some of its layers were made in a `PipelineStage`, but not in a way that
            makes stages; or if it has other layers than when it was given stages.
    """
    stages = given_stages(model)
    if stages is not None and len(stages) != len(calls_of(model)):
        raise ValueError(
            f"{model.name!r} was given stages for {len(stages)} layers, but has "
            f"{len(calls_of(model))} now. Call set_pipeline_stage_assignment() again, or "
            "reset_pipeline_stage_assignment() for a model in one piece."
        )
    return stages


def given_stages(model: keras.Model) -> list[int] | None:
    """Return the stages that a model was given, which may have got other layers since."""
    stages = PreparedModel.of(model).stages
    if stages is None:
        find_stages(model)
        graph = model_graph(model)
        if graph is None or not graph.is_marked:
            return None
        calls = graph.nested_calls
        marks = [call.mark for call in calls]
        check_assignment(calls, marks)
        stages = [mark for mark in marks if mark is not None]
        set_stages(model, stages)
    return stages if max(stages) > 0 else None


def reset_stages(model: keras.Model) -> None:
    """Have a model in one piece, whatever its layers say."""
    PreparedModel.of(model).stages = [0] * len(calls_of(model))
