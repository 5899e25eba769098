"""The run configuration of an estimator."""

import os
from dataclasses import dataclass

import convoy
from convoy.arguments import whole_number
from convoy.checkpoint.policy import Interval as CheckpointInterval

_POSITIVE = ("steps_per_execution", "stages", "keep", "log_every", "summary_every")
_OPTIONAL = ("log_every", "summary_every")


@dataclass(frozen=True)
class RunConfig:
    """Devices, checkpoints and logging of an estimator.

    Attributes:
        model_dir: folder of the checkpoints; by default a new temporary folder.
        strategy: devices, precision and gradient options; by default `convoy.Strategy()`.
        steps_per_execution: steps in one device call. Hooks run, and checkpoints are written,
            between device calls.
        stages: number of pipeline stages into which the network of an `Estimator` is split
            automatically, each on its own device. The remaining devices hold replicas.
        checkpoint_every: steps, or a time such as `"10m"`, between checkpoints. Every `train`
            also writes one at its end.
        keep: number of newest checkpoints to keep.
        log_every: steps between two log lines with the loss; `None` logs nothing.
        summary_every: steps between two values of the loss for TensorBoard, in `model_dir`;
            `None` writes none.
        seed: random seed that is set at the start of every `train`.
        report: folder for reports on the compiled programs and their runs, one report for each
            network.

    Raises:
        ValueError: if a number is not positive, or `checkpoint_every` is not an interval.
    """

    model_dir: str | os.PathLike[str] | None = None
    strategy: convoy.Strategy | None = None
    steps_per_execution: int = 1
    stages: int = 1
    checkpoint_every: int | str = "10m"
    keep: int = 5
    log_every: int | None = 100
    summary_every: int | None = None
    seed: int | None = None
    report: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) is not None or name not in _OPTIONAL:
                whole_number(name, getattr(self, name), "a positive whole number")
        if self.checkpoint_every == "epoch":
            raise ValueError("checkpoint_every='epoch': an estimator counts steps. Pass '10m'.")
        CheckpointInterval(self.checkpoint_every)
