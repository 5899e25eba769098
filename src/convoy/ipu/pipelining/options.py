"""Pipeline options, and the rules of Graphcore's schedules.

Graphcore's names for schedules: Grouped is GPipe, Interleaved is 1F1B, and Sequential runs one
micro-batch at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import keras
from convoy.estimator.spec import Stages
from convoy.estimator.user_functions import check_returned
from convoy.ipu import checks, notice
from convoy.ipu.config import IPUConfig
from convoy.ipu.enums import (
    GradientAccumulationReductionMethod,
    PipelineSchedule,
    RecomputationMode,
)
from convoy.ipu.gradient_accumulation import Accumulation, check_offload, read_dtype
from convoy.ipu.optimizers import IpuOptimizer, gradient_options
from convoy.types import PyTree

_NATIVE_SCHEDULES = {
    PipelineSchedule.Grouped: "gpipe",
    PipelineSchedule.Interleaved: "1f1b",
    PipelineSchedule.Sequential: "sequential",
}
_UNSUPPORTED_RECOMPUTATION = {
    RecomputationMode.RecomputeThenBackpropagate: PipelineSchedule.Sequential,
    RecomputationMode.RecomputeAndBackpropagateInterleaved: PipelineSchedule.Interleaved,
}

_NAMED = "Use the named argument that has this meaning"
_SET_BY_KERAS = "Leave it out: Keras sets it"
_UNSUPPORTED = "Leave it out: Keras models do not support it"
_REFUSED = {
    "gradient_accumulation_count": _NAMED,
    "device_mapping": _NAMED,
    "accumulate_outfeed": _NAMED,
    "computational_stages": _SET_BY_KERAS,
    "repeat_count": _SET_BY_KERAS,
    "inputs": _SET_BY_KERAS,
    "infeed_queue": _SET_BY_KERAS,
    "outfeed_queue": _SET_BY_KERAS,
    "optimizer_function": _SET_BY_KERAS,
    "outfeed_loss": _UNSUPPORTED,
    "outfeed_mask": _UNSUPPORTED,
    "batch_serialization_iterations": _UNSUPPORTED,
    "experimental_normalize_gradients": _UNSUPPORTED,
}
_STAGE_OPTIONS = (
    "forward_propagation_stages_poplar_options",
    "backward_propagation_stages_poplar_options",
)
_WITHOUT_EFFECT = (
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
)
NAMES = ("pipeline_schedule", "recomputation_mode", "gradient_accumulation_dtype", *_WITHOUT_EFFECT)
"""The keyword arguments that `read` takes."""

Member = TypeVar("Member", PipelineSchedule, RecomputationMode)


class FailedPreconditionError(RuntimeError):
    """Numbers that a schedule cannot run with, as TensorFlow's error of that name."""


@dataclass(frozen=True)
class PipelineStageOptions:
    """Options of Graphcore's libraries for one stage; they have no effect on other devices."""

    convolution_options: dict[str, str] | None = None
    matmul_options: dict[str, str] | None = None
    slice_options: dict[str, str] | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            checks.instance(name, value, dict, "a dict of options")


@dataclass(frozen=True)
class OptimizerFunctionOutput:
    """The loss of a pipeline, and the optimizer that minimises it.

    Attributes:
        opt: a Keras optimizer, or one of `ipu.optimizers` around it.
        loss: a tensor.
        compute_gradients_args: unsupported, like all that follow: gradients are those of the loss
            with respect to all weights.

    Raises:
        TypeError: if `opt` is not an optimizer.
        NotImplementedError: if an unsupported argument is passed.
    """

    opt: keras.optimizers.Optimizer | IpuOptimizer
    loss: keras.KerasTensor
    compute_gradients_args: object = None
    compute_gradients_kwargs: object = None
    apply_gradients_args: object = None
    apply_gradients_kwargs: object = None
    variables: object = None
    tape: object = None
    gradient_capture_context: object = None
    captured_gradient_outfeed: object = None

    def __post_init__(self) -> None:
        kinds = (keras.optimizers.Optimizer, IpuOptimizer)
        if not isinstance(self.opt, kinds):
            raise TypeError(f"opt is of type {type(self.opt).__name__}. Pass an optimizer.")
        given = [n for n, value in vars(self).items() if n not in ("opt", "loss") and value]
        if given:
            raise NotImplementedError(f"{given[0]} is not supported. Leave it out.")


def check_minimised(returned: PyTree) -> OptimizerFunctionOutput:
    """Return the result of an optimizer function.

    Raises:
        TypeError: if it is not an `OptimizerFunctionOutput`.
        ValueError: if the optimizer accumulates gradients itself.
    """
    expected = "an OptimizerFunctionOutput"
    check_returned("optimizer_function", returned, OptimizerFunctionOutput, expected)
    if gradient_options(returned.opt).accumulation is not None:
        raise ValueError("The pipeline accumulates gradients. Pass an optimizer that does not.")
    return returned


@dataclass(frozen=True)
class PipelineOptions:
    """Checked options of a pipeline.

    Attributes:
        gradient_accumulation: micro-batches per weight update; `None` if it was not set.
        device_mapping: the device of each stage; by default one device per stage.
        schedule: the pipeline schedule.
        recomputation_mode: the way of activation checkpointing.
        dtype: dtype of the accumulated gradients; by default their own.
        method: reduction of the gradients of micro-batches.
        stage_options: the lists with an entry for each stage, and their lengths.
    """

    gradient_accumulation: int | None = None
    device_mapping: list[int] | None = None
    schedule: PipelineSchedule = PipelineSchedule.Grouped
    recomputation_mode: RecomputationMode = RecomputationMode.Auto
    dtype: str | None = None
    method: GradientAccumulationReductionMethod = GradientAccumulationReductionMethod.SUM
    stage_options: tuple[tuple[str, int], ...] = ()

    @property
    def accumulation(self) -> Accumulation:
        return Accumulation(self.gradient_accumulation or 1, self.method, self.dtype)

    def stages(self, last: int, activation_checkpointing: bool) -> Stages:
        """Return the options for Convoy's engine, given the index of the last stage."""
        return Stages(
            last, _NATIVE_SCHEDULES[self.schedule], self.device_mapping, activation_checkpointing
        )

    def check(
        self,
        stages: int,
        config: IPUConfig,
        *,
        training: bool = True,
        name: str = "gradient_accumulation_steps_per_replica",
    ) -> None:
        """Check that options, stages and configuration fit together.

        Args:
            stages: number of stages.
            config: the applied configuration.
            training: whether the pipeline trains.
            name: name of the number of micro-batches.

        Raises:
            ValueError: if the number of micro-batches is not set, or an option does not have an
                entry for each stage.
            FailedPreconditionError: if the schedule needs another number of micro-batches.
            NotImplementedError: if the schedule cannot train with these options.
        """
        if self.gradient_accumulation is None:
            raise ValueError(
                "The model has stages, but no number of micro-batches for a weight update. Call "
                "set_pipelining_options(gradient_accumulation_steps_per_replica=...) first."
            )
        for option, entries in self.stage_options:
            checks.one_per_stage(option, range(entries), stages)
        is_grouped = self.schedule == PipelineSchedule.Grouped
        unit = 2 * stages if training and is_grouped else stages
        self._check_count(name, stages, unit, on_io_tiles=config.io_tiles.place_ops_on_io_tiles)
        mapping = self.device_mapping
        shared = mapping is not None and len(set(mapping)) < len(mapping)
        if training and shared and self.schedule == PipelineSchedule.Interleaved:
            raise NotImplementedError(
                f"device_mapping={mapping} has several stages on a device, with which the "
                "Interleaved schedule cannot train. Use Grouped or Sequential."
            )
        mode = self.recomputation_mode
        recomputes = training and config.allow_recompute
        if recomputes and _UNSUPPORTED_RECOMPUTATION.get(mode) == self.schedule:
            raise NotImplementedError(
                f"The {self.schedule.name} schedule does not support {mode.name}. Use "
                "RecomputationMode.Auto."
            )

    def _check_count(self, name: str, stages: int, unit: int, *, on_io_tiles: bool) -> None:
        count = self.gradient_accumulation or 1
        if self.schedule == PipelineSchedule.Sequential:
            return
        if self.schedule == PipelineSchedule.Interleaved and self.device_mapping is not None:
            unit = _micro_batches_in_flight(self.device_mapping)
        wanted = f"a multiple of {unit}"
        nearest, fits = -(-count // unit) * unit, count % unit == 0
        if on_io_tiles and self.schedule == PipelineSchedule.Grouped:
            wanted = f"{unit + 2} or more, with io_tiles.place_ops_on_io_tiles"
            nearest, fits = unit + 2, count >= unit + 2
        if not fits:
            raise FailedPreconditionError(
                f"{name}={count} is not {wanted}, as the {self.schedule.name} schedule of {stages} "
                f"stages needs. Pass {nearest}, or another schedule."
            )


def read(
    gradient_accumulation: int | None,
    device_mapping: PyTree,
    method: str | GradientAccumulationReductionMethod,
    options: Mapping[str, PyTree],
    where: str = "set_pipelining_options",
) -> PipelineOptions:
    """Check the arguments of `set_pipelining_options`, or of another function that takes the same.

    Raises:
        ValueError: if an option cannot be set here, or contradicts another.
        TypeError: if an option is unknown, or has the wrong type.
        NotImplementedError: if an option is unsupported.
    """
    for name in options:
        if name in _REFUSED:
            raise ValueError(f"{where}() does not take {name!r}. {_REFUSED[name]}.")
        if name not in NAMES:
            raise TypeError(f"{where}() does not take {name!r}. It takes {', '.join(NAMES)}.")
    is_list = isinstance(device_mapping, list)
    if device_mapping is not None and not (is_list and all(type(d) is int for d in device_mapping)):
        raise ValueError(f"device_mapping={device_mapping!r} is not a list of ints. Pass one.")
    for name in _STAGE_OPTIONS:
        checks.instance(name, options.get(name), (list, tuple), "a list of PipelineStageOptions")
        for entry in options.get(name) or ():
            checks.instance(name, entry, PipelineStageOptions, "a list of PipelineStageOptions")
    name = "weight_update_poplar_options"
    checks.instance(name, options.get(name), PipelineStageOptions, "a PipelineStageOptions")
    if options.get("continuous_weight_updates"):
        raise NotImplementedError("continuous_weight_updates=True is not supported. Leave it out.")
    check_offload(options)
    notice.no_effect(where, {name: options.get(name) for name in _WITHOUT_EFFECT})
    name = "gradient_accumulation_dtype"
    return PipelineOptions(
        gradient_accumulation,
        device_mapping,
        _member("pipeline_schedule", options, PipelineSchedule.Grouped),
        _member("recomputation_mode", options, RecomputationMode.Auto),
        read_dtype(name, options.get(name)),
        GradientAccumulationReductionMethod.parse(method),
        tuple((name, len(options[name])) for name in _STAGE_OPTIONS if options.get(name)),
    )


def _member(name: str, options: Mapping[str, PyTree], default: Member) -> Member:
    value = options.get(name)
    checks.instance(name, value, type(default), f"a {type(default).__name__}")
    return default if value is None else value


def _micro_batches_in_flight(mapping: Sequence[int]) -> int:
    """Return how many micro-batches can move through the stages without sharing a device.

    Micro-batch k is k stages behind the first, so at every step it is on the device of a rotated
    mapping. With the mapping [0, 1, 0, 1] there are two: one on device 0, the other on device 1.
    """
    rotations: list[tuple[int, ...]] = []
    for first in range(len(mapping)):
        rotated = (*mapping[first:], *mapping[:first])
        if all(a != b for other in rotations for a, b in zip(rotated, other, strict=True)):
            rotations.append(rotated)
    return len(rotations)
