"""How an estimator runs."""

from __future__ import annotations

import os
from dataclasses import dataclass

import convoy
from convoy.checkpoint.policy import Interval


@dataclass(frozen=True)
class RunConfig:
    """How an estimator runs.

    Attributes:
        model_dir: where checkpoints are; by default a new folder for temporary files.
        strategy: devices, precision and the rest; by default `convoy.Strategy()`.
        steps_per_execution: steps in one device call. Hooks are told, and checkpoints written,
            between device calls.
        stages: into how many stages, each on a device of its own, the network of an `Estimator`
            is divided by itself. Devices left over hold replicas.
        checkpoint_every: steps, or a time such as `"10m"`, between checkpoints. The end of every
            `train` is written in any case.
        keep: how many of the newest checkpoints are kept.
        log_every: steps between two lines of the log with the loss; `None` is quiet.
        summary_every: steps between two values of the loss for TensorBoard, in `model_dir`;
            `None` writes none.
        seed: from which all random numbers begin in every `train`.
        report: a folder in which every network has a report of its own: what was compiled, and how
            it ran.

    Raises:
        ValueError: if a number or a time is none.
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
        for name in ("steps_per_execution", "stages", "keep", "log_every", "summary_every"):
            value = getattr(self, name)
            if value is None and name in ("log_every", "summary_every"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} is not a number from 1. Pass 1 or more.")
        if self.checkpoint_every == "epoch":
            raise ValueError(
                "checkpoint_every='epoch': an estimator counts steps. Pass a number of them, or a "
                "time such as '10m'."
            )
        Interval(self.checkpoint_every)
