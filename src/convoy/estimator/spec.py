"""What a model function returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import convoy
import keras
from convoy.engine.prepared_model import GradientMap
from convoy.estimator.function import is_tensor
from convoy.estimator.hooks import Hook
from convoy.pipeline import Schedule

HostMetrics = tuple[Callable[..., Mapping[str, Any]], Any]
"""A function, and the tensors whose values it is given."""


class ModeKeys(StrEnum):
    """What a network is made for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@dataclass(frozen=True)
class EstimatorSpec:
    """A network, for one mode.

    Attributes:
        mode: as the model function was told.
        predictions: a tensor, or a dict of them. Needed in `PREDICT`, and for a loss or metrics
            that compare them with the labels.
        loss: a scalar tensor, or one with a value for each sample; or a Keras loss (an object, a
            function or a name) of labels and predictions. Needed in `TRAIN`, and in `EVAL` unless
            there are `host_metrics`.
        optimizer: a Keras optimizer, or its name. Needed in `TRAIN`.
        metrics: by name, for `EVAL`: a Keras metric of labels and predictions, or a tuple of a
            metric, the labels and a tensor. They are computed on the devices.
        host_metrics: for `EVAL`, in the place of `metrics`: a function and a list or dict of
            tensors. It is given their values for all samples as arrays, and returns numbers by
            name.
        logged: tensors by name whose values of every step hooks can see, in `TRAIN`.
        hooks: told of the run, beside those that are passed to `train` and its sisters.

    Raises:
        ValueError: if something that the mode needs is missing.
    """

    mode: ModeKeys | str
    predictions: Any = None
    loss: Any = None
    optimizer: keras.optimizers.Optimizer | str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    host_metrics: HostMetrics | None = None
    logged: Mapping[str, Any] = field(default_factory=dict)
    hooks: Sequence[Hook] = ()

    def __post_init__(self) -> None:
        if self.mode not in list(ModeKeys):
            known = ", ".join(f"ModeKeys.{mode.name}" for mode in ModeKeys)
            raise ValueError(f"mode={self.mode!r} is not a mode. Pass one of {known}.")
        if self.metrics and self.host_metrics is not None:
            raise ValueError("Both metrics and host_metrics were passed. Pass one of them.")
        needed = {
            ModeKeys.TRAIN: {"loss": self.loss, "optimizer": self.optimizer},
            ModeKeys.EVAL: {"loss or host_metrics": _either(self.loss, self.host_metrics)},
            ModeKeys.PREDICT: {"predictions": self.predictions},
        }[ModeKeys(self.mode)]
        for name, value in needed.items():
            if value is None:
                raise ValueError(f"The spec for {ModeKeys(self.mode).name} has no {name}. Pass it.")
        for name, tensor in self.logged.items():
            if not is_tensor(tensor):
                raise ValueError(f"logged[{name!r}] is {tensor!r}, not a tensor of the network.")


@dataclass(frozen=True)
class PipelineEstimatorSpec:
    """A network in stages, for one mode.

    Attributes:
        mode: as the model function was told.
        stages: functions. The first takes features and labels (in `PREDICT` features alone), each
            of the others what the one before it returned: a tensor, a tuple or a dict. The last
            returns the loss in `TRAIN`, what `host_metrics` takes in `EVAL`, and the predictions
            in `PREDICT`.
        optimizer: a Keras optimizer, or its name. Needed in `TRAIN`.
        gradient_accumulation: micro-batches of a weight update, on each replica.
        reduction: of their gradients, `"mean"` or `"sum"`.
        host_metrics: a function. It is given the values of what the last stage returned, for all
            samples, as arrays, and returns numbers by name, one of which is `"loss"`. Needed in
            `EVAL`.
        schedule: `"1f1b"`, `"gpipe"`, `"sequential"`, `"zero-bubble"`, or your own.
        device_mapping: the device of each stage; by default one for each.
        recompute: whether stages keep only their input for the backward pass.
        hooks: told of the run, beside those that are passed to `train` and its sisters.

    Raises:
        ValueError: if something that the mode needs is missing.
    """

    mode: ModeKeys | str
    stages: Sequence[Callable[..., Any]]
    optimizer: keras.optimizers.Optimizer | str | None = None
    gradient_accumulation: int = 1
    reduction: Literal["mean", "sum"] = "mean"
    host_metrics: Callable[..., Mapping[str, Any]] | None = None
    schedule: str | Schedule = "1f1b"
    device_mapping: Sequence[int] | None = None
    recompute: bool = False
    hooks: Sequence[Hook] = ()

    def __post_init__(self) -> None:
        if self.mode not in list(ModeKeys):
            known = ", ".join(f"ModeKeys.{mode.name}" for mode in ModeKeys)
            raise ValueError(f"mode={self.mode!r} is not a mode. Pass one of {known}.")
        if len(self.stages) < 2:
            raise ValueError(f"A pipeline has two stages or more, but received {len(self.stages)}.")
        if self.mode == ModeKeys.TRAIN and self.optimizer is None:
            raise ValueError("The spec for TRAIN has no optimizer. Pass it.")
        if self.mode == ModeKeys.EVAL and self.host_metrics is None:
            raise ValueError("The spec for EVAL has no host_metrics. Pass a function.")


@dataclass(frozen=True)
class Accumulated:
    """How many micro-batches make a weight update, and how their gradients become one."""

    count: int
    reduction: Literal["mean", "sum"] = "mean"
    dtype: str | None = None


@dataclass(frozen=True)
class Stages:
    """How a network that was written in stages is run.

    Attributes:
        last: the number of the last stage.
        schedule: the order in which stages take their turns.
        device_mapping: the device of each; by default one for each.
        recompute: whether stages keep their input only.
        has_gaps: whether some of the network is in no stage: it goes where its inputs are.
    """

    last: int
    schedule: str | Schedule = "1f1b"
    device_mapping: Sequence[int] | None = None
    recompute: bool = False
    has_gaps: bool = False

    @property
    def width(self) -> int:
        """How many devices a replica takes."""
        return max(self.device_mapping or [self.last]) + 1


def _either(first: Any, second: Any) -> Any:
    return second if first is None else first


class Built(NamedTuple):
    """What came of calling a model function.

    Attributes:
        spec: the network.
        stages: how it runs in stages, if it was written in some.
        accumulated: what makes a weight update; by default what the strategy says.
        strategy: where it runs, if not where the estimator does.
        gradient_map: changes the gradients of every micro-batch.
    """

    spec: EstimatorSpec
    stages: Stages | None = None
    accumulated: Accumulated | None = None
    strategy: convoy.Strategy | None = None
    gradient_map: GradientMap | None = None
