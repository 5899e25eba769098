"""Those who are told how a run goes, between its device calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from convoy.estimator.estimator import Estimator

log = logging.getLogger("convoy.estimator")


@dataclass
class Run:
    """A run of `train`, `evaluate` or `predict` between two device calls.

    Attributes:
        estimator: whose run it is.
        mode: what it does.
        global_step: steps that the network has been trained, over all runs.
        loss: the mean over the last device call and all replicas; `None` before the first.
        values: of the tensors in the spec's `logged`, of each step of the last device call: the
            mean over replicas.
        stopped: set it to have the run end before the next device call.
    """

    estimator: Estimator
    mode: str
    global_step: int
    loss: float | None = None
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    stopped: bool = False


class Hook:
    """Override what you want to be told of."""

    def begin(self, run: Run) -> None:
        """Before the first device call."""

    def after_execution(self, run: Run) -> None:
        """After every device call."""

    def after_save(self, run: Run) -> None:
        """After a checkpoint was written."""

    def end(self, run: Run) -> None:
        """After the last device call."""


class Cadence:
    """Every so many of something, or every so many seconds.

    Raises:
        ValueError: if a number is not positive.
    """

    def __init__(self, count: int | None = None, seconds: float | None = None) -> None:
        for value in (count, seconds):
            if value is not None and value <= 0:
                raise ValueError(f"{value} is not a distance in time or steps. Pass more than 0.")
        self.count, self.seconds = count, seconds
        self.begin(0)

    def begin(self, now: int) -> None:
        """Start to count from here."""
        self._then, self._since = now, time.monotonic()

    def due(self, now: int) -> bool:
        if self.count is not None:
            return now // self.count > self._then // self.count
        return self.seconds is not None and time.monotonic() - self._since >= self.seconds


class LoggingHook(Hook):
    """Writes values of a training run to the log.

    Args:
        every_steps: steps between two lines.
        every_seconds: or seconds.
        at_end: whether the end of the run is logged too.
        names: of the spec's `logged` tensors; by default the loss.
        keep: `"last"` logs the last value, `"all"` an array of all since the line before.
        formatter: makes the line from a dict of values.

    Raises:
        ValueError: unless one of the two distances is given, or `at_end`.
    """

    def __init__(
        self,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        at_end: bool = False,
        names: Sequence[str] | None = None,
        keep: Literal["last", "all"] = "last",
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        if (every_steps is None) == (every_seconds is None) and not (at_end and not every_steps):
            raise ValueError(
                f"every_steps={every_steps} and every_seconds={every_seconds}: pass one of them."
            )
        self.cadence = Cadence(every_steps, every_seconds)
        self.at_end, self.names, self.keep, self.formatter = at_end, names, keep, formatter
        self._since: dict[str, list[np.ndarray]] = {}
        self._executions = 0
        self._logged_at = time.monotonic()

    def begin(self, run: Run) -> None:
        self._since = {}
        self._logged_at = time.monotonic()
        self.cadence.begin(self._now(run))

    def after_execution(self, run: Run) -> None:
        for name, value in self._values(run).items():
            self._since.setdefault(name, []).append(np.atleast_1d(value))
        self._executions += 1
        if self.cadence.due(self._now(run)):
            self._log(run)

    def end(self, run: Run) -> None:
        if self.at_end and self._since:
            self._log(run)

    def _now(self, run: Run) -> int:
        return run.global_step

    def _values(self, run: Run) -> dict[str, Any]:
        if self.names is None:
            return {"loss": run.loss}
        return {name: run.values[name] for name in self.names}

    def _log(self, run: Run) -> None:
        kept = {name: np.concatenate(parts) for name, parts in self._since.items()}
        values = kept if self.keep == "all" else {name: kept[name][-1] for name in kept}
        now = time.monotonic()
        if self.formatter is not None:
            log.info(self.formatter(values))
        else:
            shown = ", ".join(f"{name} = {value}" for name, value in values.items())
            log.info(f"{shown}, step = {run.global_step} ({now - self._logged_at:.3f} sec)")
        self._since = {}
        self._logged_at = now
        self.cadence.begin(self._now(run))
