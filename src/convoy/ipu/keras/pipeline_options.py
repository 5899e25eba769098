"""What `set_pipelining_options` takes, and the rules of each schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from convoy.ipu import notice
from convoy.ipu.accumulation import check_offload, read_dtype
from convoy.ipu.enums import (
    GradientAccumulationReductionMethod,
    PipelineSchedule,
    RecomputationMode,
)
from convoy.ipu.errors import FailedPreconditionError
from convoy.ipu.pipelining.words import PipelineStageOptions

SCHEDULES = {
    PipelineSchedule.Grouped: "gpipe",
    PipelineSchedule.Interleaved: "1f1b",
    PipelineSchedule.Sequential: "sequential",
}
"""By the names that they have in Convoy."""

_NAMED = {"gradient_accumulation_count", "device_mapping", "accumulate_outfeed"}
_SET_BY_KERAS = {
    "computational_stages",
    "repeat_count",
    "inputs",
    "infeed_queue",
    "outfeed_queue",
    "optimizer_function",
}
_INCOMPATIBLE = {
    "outfeed_loss",
    "outfeed_mask",
    "batch_serialization_iterations",
    "experimental_normalize_gradients",
}
_STAGE_OPTIONS = (
    "forward_propagation_stages_poplar_options",
    "backward_propagation_stages_poplar_options",
)
_WITHOUT_EFFECT = {
    *_STAGE_OPTIONS,
    "weight_update_poplar_options",
    "gradient_accumulation_for_captured_grads",
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
    "replicated_weight_sharding",
    "offload_weights",
    "continuous_weight_updates",
    "accumulate_outfeed_dtype",
    "name",
}
_HONOURED = {
    "pipeline_schedule",
    "recomputation_mode",
    "gradient_accumulation_dtype",
}


@dataclass(frozen=True)
class PipelineOptions:
    """What a user said about a pipeline."""

    count: int | None = None
    device_mapping: list[int] | None = None
    schedule: PipelineSchedule = PipelineSchedule.Grouped
    recomputation_mode: RecomputationMode = RecomputationMode.Auto
    dtype: str | None = None
    method: GradientAccumulationReductionMethod = field(
        default=GradientAccumulationReductionMethod.SUM
    )
    stage_options: tuple[tuple[str, int], ...] = ()
    """The lists that have an entry for each stage, and how many they have."""

    def check(
        self,
        stages: int,
        *,
        on_io_tiles: bool = False,
        name: str = "gradient_accumulation_steps_per_replica",
    ) -> int:
        """Return the number of micro-batches of a weight update, if it suits the schedule.

        Args:
            stages: of the pipeline.
            on_io_tiles: whether the configuration has tiles of their own for input and output,
                which changes what the Grouped schedule wants.
            name: of the number.

        Raises:
            ValueError: if it was not set, or an option has not an entry for each stage.
            FailedPreconditionError: if it does not divide as the schedule wants.
            NotImplementedError: if the schedule does not go together with the rest.
        """
        if self.count is None:
            raise ValueError(
                "The model has stages, but no number of micro-batches for a weight update. Call "
                "set_pipelining_options(gradient_accumulation_steps_per_replica=...) first."
            )
        self.check_stage_options(stages)
        unit = 2 * stages if self.schedule == PipelineSchedule.Grouped else stages
        self.check_count(name, stages, unit, on_io_tiles)
        mapping = self.device_mapping
        shared = mapping is not None and len(set(mapping)) < len(mapping)
        if shared and self.schedule == PipelineSchedule.Interleaved:
            raise NotImplementedError(
                f"device_mapping={mapping} has several stages on a device, which the Interleaved "
                "schedule does not train. Use Grouped or Sequential."
            )
        return self.count

    def check_stage_options(self, stages: int) -> None:
        """Refuse options that have not an entry for each stage."""
        for name, entries in self.stage_options:
            if entries != stages:
                raise ValueError(
                    f"{name} has {entries} entries, but there are {stages} stages. Pass one for "
                    "each."
                )

    def check_count(self, name: str, stages: int, unit: int, on_io_tiles: bool) -> None:
        """Refuse a number of micro-batches that the schedule does not run.

        Args:
            name: of the number.
            stages: of the pipeline.
            unit: what Grouped and Interleaved want a multiple of; Interleaved fewer if stages
                share devices, as they can when nothing is trained.
            on_io_tiles: whether Grouped wants so many and two more instead.

        Raises:
            FailedPreconditionError: if it is such a number.
        """
        count = self.count or 1
        if self.schedule == PipelineSchedule.Sequential:
            return
        if self.schedule == PipelineSchedule.Interleaved and self.device_mapping is not None:
            unit = _in_flight(self.device_mapping)
        wanted = f"a multiple of {unit}"
        near, fits = -(-count // unit) * unit, count % unit == 0
        if on_io_tiles and self.schedule == PipelineSchedule.Grouped:
            wanted = f"{unit + 2} or more, with io_tiles.place_ops_on_io_tiles"
            near, fits = unit + 2, count >= unit + 2
        if not fits:
            raise FailedPreconditionError(
                f"{name}={count} is not {wanted}, as the {self.schedule.name} schedule of {stages} "
                f"stages wants. Pass {near}, or another schedule."
            )

    def check_recomputation(self) -> None:
        """Refuse a mode of recomputation that the schedule does not have."""
        mode, schedule = self.recomputation_mode, self.schedule
        without = {
            RecomputationMode.RecomputeThenBackpropagate: PipelineSchedule.Sequential,
            RecomputationMode.RecomputeAndBackpropagateInterleaved: PipelineSchedule.Interleaved,
        }
        if without.get(mode) == schedule:
            raise NotImplementedError(
                f"The {schedule.name} schedule does not recompute by {mode.name}. Use "
                "RecomputationMode.Auto."
            )


def read(
    count: int | None,
    device_mapping: Any,
    method: GradientAccumulationReductionMethod,
    options: Mapping[str, Any],
    where: str = "set_pipelining_options",
) -> PipelineOptions:
    """Check what `set_pipelining_options` was given, or another that takes the same.

    Raises:
        ValueError: if an option is not to be set here, or does not go together with others.
        TypeError: if an option is unknown, or of a wrong type.
    """
    _check_names(options, where)
    if device_mapping is not None and not _is_list_of(device_mapping, int):
        raise ValueError(f"device_mapping={device_mapping!r} is not a list of ints.")
    schedule = _member("pipeline_schedule", options, PipelineSchedule.Grouped)
    mode = _member("recomputation_mode", options, RecomputationMode.Auto)
    for name in _STAGE_OPTIONS:
        value = options.get(name)
        if value is not None and not _is_list_of(value, PipelineStageOptions):
            raise TypeError(f"{name}={value!r} is not a list of PipelineStageOptions.")
    of_update = options.get("weight_update_poplar_options")
    if of_update is not None and not isinstance(of_update, PipelineStageOptions):
        raise TypeError(
            f"weight_update_poplar_options={of_update!r} is not a PipelineStageOptions."
        )
    if options.get("continuous_weight_updates"):
        raise NotImplementedError(
            "continuous_weight_updates=True: weights are updated after every pipeline execution. "
            "Leave it out."
        )
    check_offload(options)
    notice.without_effect(
        [name for name, value in options.items() if name in _WITHOUT_EFFECT and value],
        where,
    )
    dtype = read_dtype("gradient_accumulation_dtype", options)
    lists = tuple((name, len(options[name])) for name in _STAGE_OPTIONS if options.get(name))
    return PipelineOptions(count, device_mapping, schedule, mode, dtype, method, lists)


def _in_flight(mapping: Sequence[int]) -> int:
    """Return how many micro-batches can go round the devices of stages and never meet."""
    rounds: list[tuple[int, ...]] = []
    for first in range(len(mapping)):
        turned = (*mapping[first:], *mapping[:first])
        if all(a != b for other in rounds for a, b in zip(turned, other, strict=True)):
            rounds.append(turned)
    return len(rounds)


def check_count(count: Any) -> None:
    """Refuse what is not a number of micro-batches."""
    if count is not None and (type(count) is not int or count < 1):
        raise ValueError(
            f"gradient_accumulation_steps_per_replica={count!r} is not a number of micro-batches. "
            "Pass an int of 1 or more."
        )


def _check_names(options: Mapping[str, Any], where: str) -> None:
    for names, advice in (
        (_NAMED, "Use the named argument that has this meaning"),
        (_SET_BY_KERAS, "Leave it out: Keras sets it"),
        (_INCOMPATIBLE, "Leave it out: Keras models do not go together with it"),
    ):
        found = sorted(names & set(options))
        if found:
            raise ValueError(f"{where}() does not take {found[0]!r}. {advice}.")
    unknown = sorted(set(options) - _HONOURED - _WITHOUT_EFFECT)
    if unknown:
        raise TypeError(f"{where}() has no argument {unknown[0]!r}.")


def _member(name: str, options: Mapping[str, Any], default: Any) -> Any:
    value = options.get(name)
    if value is None:
        return default
    if not isinstance(value, type(default)):
        raise TypeError(f"{name}={value!r} is not a {type(default).__name__}.")
    return value


def _is_list_of(value: Any, kind: type) -> bool:
    return (
        isinstance(value, list if kind is int else Sequence)
        and not isinstance(value, str)
        and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)
    )
