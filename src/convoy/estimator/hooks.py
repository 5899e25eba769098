"""Hooks: objects that an estimator calls between device calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from convoy.checkpoint.policy import Interval as CheckpointInterval
from convoy.data.event_file import EventFile
from convoy.types import Logs

if TYPE_CHECKING:
    from convoy.estimator.estimator import Estimator

log = logging.getLogger("convoy.estimator")
Keep = Literal["last", "all"]


@dataclass
class Run:
    """The state of a run of `train`, `evaluate` or `predict` between two device calls.

    Attributes:
        estimator: the estimator that runs.
        mode: one of `ModeKeys`.
        global_step: steps for which the network has been trained, over all runs.
        loss: mean over the last device call and all replicas; `None` before the first.
        values: values of the spec's `logged` tensors at each step of the last device call, as
            means over replicas.
        stopped: set to `True` to end the run before the next device call.
    """

    estimator: Estimator
    mode: str
    global_step: int
    loss: float | None = None
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    stopped: bool = False


class Hook:
    """Base class of hooks. Override the methods that you need."""

    def begin(self, run: Run) -> None:
        """Run before the first device call."""

    def after_execution(self, run: Run) -> None:
        """Run after every device call."""

    def after_save(self, run: Run) -> None:
        """Run after a checkpoint was written."""

    def end(self, run: Run) -> None:
        """Run after the last device call."""


class Interval(CheckpointInterval):
    """An interval in steps or in seconds; without either, it never ends.

    Raises:
        ValueError: if a number is not positive.
    """

    def __init__(self, steps: int | None = None, seconds: float | None = None) -> None:
        for value in (steps, seconds):
            if value is not None and value <= 0:
                raise ValueError(f"{value} is not an interval in steps or seconds. Pass 1 or more.")
        self.steps, self.seconds = steps, seconds
        self.begin(0)


def check_intervals(at_end: bool, **intervals: float | None) -> None:
    """Raise `ValueError` unless exactly one interval was passed, or only `at_end`."""
    given = [value for value in intervals.values() if value is not None]
    if len(given) != 1 and (given or not at_end):
        passed = " and ".join(f"{name}={value}" for name, value in intervals.items())
        raise ValueError(f"{passed}: pass one of them, or at_end=True alone.")


class LoggingHook(Hook):
    """Logs values of a training run.

    Args:
        every_steps: steps between two log lines.
        every_seconds: seconds between two log lines, instead of `every_steps`.
        at_end: whether the end of the run is logged too.
        names: names of `logged` tensors of the spec; by default the loss is logged.
        keep: `"last"` logs the last value, `"all"` an array of all values since the previous line.
        formatter: a function that makes the log line from a dict of values.

    Raises:
        ValueError: unless exactly one of the intervals, or only `at_end`, is passed.
    """

    def __init__(
        self,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        at_end: bool = False,
        names: Sequence[str] | None = None,
        keep: Keep = "last",
        formatter: Callable[[Logs], str] | None = None,
    ) -> None:
        check_intervals(at_end, every_steps=every_steps, every_seconds=every_seconds)
        self.interval = Interval(every_steps, every_seconds)
        self.at_end, self.names, self.keep, self.formatter = at_end, names, keep, formatter
        self._executions = 0

    def begin(self, run: Run) -> None:
        self._restart(run)

    def after_execution(self, run: Run) -> None:
        for name, value in self._values(run).items():
            self._since.setdefault(name, []).append(np.atleast_1d(value))
        self._executions += 1
        if self.interval.is_due(self._count(run)):
            self._log(run)

    def end(self, run: Run) -> None:
        if self.at_end and self._since:
            self._log(run)

    def _count(self, run: Run) -> int:
        """Return the number that `every_steps` counts."""
        return run.global_step

    def _values(self, run: Run) -> Logs:
        if self.names is None:
            return {"loss": run.loss}
        return {name: run.values[name] for name in self.names}

    def _log(self, run: Run) -> None:
        kept = {name: np.concatenate(parts) for name, parts in self._since.items()}
        values = kept if self.keep == "all" else {name: kept[name][-1] for name in kept}
        if self.formatter is not None:
            log.info(self.formatter(values))
        else:
            shown = ", ".join(f"{name} = {value}" for name, value in values.items())
            seconds = time.monotonic() - self._logged_at
            log.info(f"{shown}, step = {run.global_step} ({seconds:.3f} sec)")
        self._restart(run)

    def _restart(self, run: Run) -> None:
        self._since: dict[str, list[np.ndarray]] = {}
        self._logged_at = time.monotonic()
        self.interval.begin(self._count(run))


class SummaryHook(Hook):
    """Writes the loss into a TensorBoard event file, at most once per device call.

    Args:
        folder: folder of the event file.
        every_steps: steps between two values.
    """

    def __init__(self, folder: Path, every_steps: int) -> None:
        self.folder = folder
        self.interval = Interval(every_steps)
        self._file: EventFile | None = None

    def begin(self, run: Run) -> None:
        self.interval.begin(run.global_step)

    def after_execution(self, run: Run) -> None:
        if run.loss is None or not self.interval.is_due(run.global_step):
            return
        if self._file is None:
            self._file = EventFile(self.folder)
        self._file.scalars(run.global_step, {"loss": run.loss})
        self.interval.begin(run.global_step)

    def end(self, run: Run) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
