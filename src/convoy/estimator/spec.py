"""Return values of model functions: estimator specs, and what a network is built from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

import convoy
import keras
from convoy.engine.execution_config import Reduction
from convoy.engine.prepared_model import GradientMap
from convoy.estimator.hooks import Hook
from convoy.estimator.jax_function import is_symbolic
from convoy.pipeline import Schedule
from convoy.types import PyTree

HostFunction = Callable[..., Mapping[str, PyTree]]
"""Takes the values of tensors for all samples as arrays, and returns numbers by name."""


class ModeKeys(StrEnum):
    """The mode for which a model function builds a network."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@dataclass(frozen=True)
class EstimatorSpec:
    """A network for one mode.

    Attributes:
        mode: the mode that was passed to the model function.
        predictions: a tensor, or a dict of tensors. Required in `PREDICT`, and for a loss or
            metrics that compare them with the labels.
        loss: a scalar tensor, or a tensor with a value for each sample; or a Keras loss (an
            object, a function or a name) of labels and predictions. Required in `TRAIN`, and in
            `EVAL` without `host_metrics`.
        optimizer: a Keras optimizer, or its name. Required in `TRAIN`.
        metrics: metrics for `EVAL` by name, computed on the devices: a Keras metric of labels and
            predictions, or a tuple of a metric, the labels and a tensor.
        host_metrics: replacement for `metrics`, computed on the host: a function and a list or
            dict of tensors. The function takes their values for all samples as arrays, and
            returns numbers by name.
        logged: tensors by name whose value at every step is passed to hooks, in `TRAIN`.
        hooks: hooks of the run, in addition to those passed to `train`, `evaluate` or `predict`.

    Raises:
        ValueError: if something that the mode requires is missing.
    """

    mode: ModeKeys | str
    predictions: PyTree = None
    loss: PyTree = None
    optimizer: keras.optimizers.Optimizer | str | None = None
    metrics: Mapping[str, PyTree] = field(default_factory=dict)
    host_metrics: tuple[HostFunction, PyTree] | None = None
    logged: Mapping[str, PyTree] = field(default_factory=dict)
    hooks: Sequence[Hook] = ()

    def __post_init__(self) -> None:
        if self.metrics and self.host_metrics is not None:
            raise ValueError("Both metrics and host_metrics were passed. Pass one of them.")
        check_mode(
            self.mode,
            TRAIN={"loss": self.loss, "optimizer": self.optimizer},
            EVAL={"loss or host_metrics": self.host_metrics if self.loss is None else self.loss},
            PREDICT={"predictions": self.predictions},
        )
        for name, tensor in self.logged.items():
            if not is_symbolic(tensor):
                raise ValueError(
                    f"logged[{name!r}] is {tensor!r}, not a tensor of the network. Pass one."
                )


@dataclass(frozen=True)
class PipelineEstimatorSpec:
    """A network in pipeline stages, for one mode.

    Attributes:
        mode: the mode that was passed to the model function.
        stages: one function per stage. The first takes features and labels (in `PREDICT` only
            features), each other stage takes what the previous one returned: a tensor, a tuple or
            a dict. The last stage returns the loss in `TRAIN`, the arguments of `host_metrics` in
            `EVAL`, and the predictions in `PREDICT`.
        optimizer: a Keras optimizer, or its name. Required in `TRAIN`.
        gradient_accumulation: micro-batches per weight update and replica.
        reduction: reduction of their gradients, `"mean"` or `"sum"`.
        host_metrics: a function of the last stage's outputs for all samples, as arrays. Returns
            numbers by name, including `"loss"`. Required in `EVAL`.
        schedule: `"1f1b"`, `"gpipe"`, `"sequential"`, `"zero-bubble"`, or a `Schedule`.
        device_mapping: the device of each stage; by default one device per stage.
        activation_checkpointing: whether stages keep only their inputs for the backward pass.
        hooks: hooks of the run, in addition to those passed to `train`, `evaluate` or `predict`.

    Raises:
        ValueError: if something that the mode requires is missing.
    """

    mode: ModeKeys | str
    stages: Sequence[Callable[..., PyTree]]
    optimizer: keras.optimizers.Optimizer | str | None = None
    gradient_accumulation: int = 1
    reduction: Literal["mean", "sum"] = "mean"
    host_metrics: HostFunction | None = None
    schedule: str | Schedule = "1f1b"
    device_mapping: Sequence[int] | None = None
    activation_checkpointing: bool = False
    hooks: Sequence[Hook] = ()

    def __post_init__(self) -> None:
        check_stage_count(self.stages)
        train, evaluate = {"optimizer": self.optimizer}, {"host_metrics": self.host_metrics}
        check_mode(self.mode, TRAIN=train, EVAL=evaluate)


def check_stage_count(stages: Sequence[object]) -> None:
    """Raise `ValueError` if a pipeline has fewer than two stages."""
    if len(stages) < 2:
        raise ValueError(
            f"A pipeline has two stages or more, but received {len(stages)}. Pass one function for "
            "each."
        )


def check_mode(mode: str, **required: Mapping[str, PyTree]) -> None:
    """Check the mode of a spec, and that no value that the mode requires is `None`."""
    if mode not in list(ModeKeys):
        known = ", ".join(f"ModeKeys.{mode.name}" for mode in ModeKeys)
        raise ValueError(f"mode={mode!r} is not a mode. Pass one of {known}.")
    word = ModeKeys(mode).name
    for name, value in required.get(word, {}).items():
        if value is None:
            raise ValueError(f"The spec for {word} has no {name}. Pass it.")


@dataclass(frozen=True)
class Accumulation:
    """Options of `set_gradient_accumulation`.

    Attributes:
        gradient_accumulation: micro-batches per weight update and replica.
        reduction: reduction of their gradients; by default the strategy's.
        dtype: dtype of the accumulated gradients; by default their own.
    """

    gradient_accumulation: int = 1
    reduction: Reduction | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Stages:
    """Pipeline options of a network that was written in stages.

    Attributes:
        last: index of the last stage.
        schedule: a pipeline schedule, or its name.
        device_mapping: the device of each stage; by default one device per stage.
        activation_checkpointing: whether stages keep only their inputs for the backward pass.
        has_gaps: whether some layers are in no stage; these join the stage of their inputs.
    """

    last: int
    schedule: str | Schedule = "1f1b"
    device_mapping: Sequence[int] | None = None
    activation_checkpointing: bool = False
    has_gaps: bool = False

    @property
    def devices_per_replica(self) -> int:
        return max(self.device_mapping or [self.last]) + 1

    @property
    def options(self) -> dict[str, PyTree]:
        """The arguments of a model's `set_pipelining_options`."""
        return {
            "schedule": self.schedule,
            "device_mapping": self.device_mapping,
            "activation_checkpointing": self.activation_checkpointing,
        }


class NetworkSpec(NamedTuple):
    """What a network is built from, after the model function was called.

    Attributes:
        spec: tensors, optimizer and hooks.
        stages: pipeline options, if the network was written in stages.
        accumulation: gradient accumulation; by default that of the strategy.
        strategy: a strategy other than the estimator's.
        gradient_map: a function that changes the gradients of every micro-batch.
    """

    spec: EstimatorSpec
    stages: Stages | None = None
    accumulation: Accumulation | None = None
    strategy: convoy.Strategy | None = None
    gradient_map: GradientMap | None = None
