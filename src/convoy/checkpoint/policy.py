"""Policies of checkpoints: when one is due, and which ones are kept."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from convoy.checkpoint.folder import Position
from convoy.engine.checkpointer import RunState

_UNITS = {"s": 1, "m": 60, "h": 3600}


class Interval:
    """The interval between two checkpoints: the argument `every`.

    Args:
        every: `"epoch"`, a number of steps, or a time such as `"10m"`.

    Raises:
        ValueError: if it is none of these.
    """

    def __init__(self, every: int | str) -> None:
        self.steps: int | None = None
        self.seconds: float | None = None
        duration = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", str(every))
        if duration and float(duration[1]) > 0:
            self.seconds = float(duration[1]) * _UNITS[duration[2]]
        elif isinstance(every, int) and not isinstance(every, bool) and every >= 1:
            self.steps = every
        elif every != "epoch":
            raise ValueError(
                f"every={every!r} is not an interval between checkpoints. Pass 'epoch', a number "
                "of steps such as 1000, or a time such as '30s', '10m' or '1h'."
            )
        self.begin(0)

    def begin(self, total: int) -> None:
        """Begin an interval after a total number of steps."""
        self._begin_steps = total
        self._begin_time = time.monotonic()

    def is_due(self, total: int) -> bool:
        """Return whether the interval in steps or seconds is over."""
        if self.steps is not None:
            # Counted from the run's first step, so that a resumed run saves at the same steps.
            return total // self.steps > self._begin_steps // self.steps
        return self.seconds is not None and time.monotonic() - self._begin_time >= self.seconds

    def due(self, run_state: RunState) -> bool:
        """Return whether the interval is over; `"epoch"` is over at the end of each epoch."""
        is_epoch = self.steps is None and self.seconds is None
        return run_state.step == 0 if is_epoch else self.is_due(run_state.total)


@dataclass(frozen=True)
class Best:
    """The criterion for the best checkpoint: the argument `best`.

    Attributes:
        metric: the name of the metric.
        sign: 1 if a larger value is better, else -1.
    """

    metric: str
    sign: int

    @classmethod
    def parse(cls, best: str) -> Best:
        """Parse the argument.

        Raises:
            ValueError: if the direction is neither given nor known from the metric's name.
        """
        direction, _, metric = best.rpartition(":")
        if direction in ("min", "max") and metric:
            return cls(metric, -1 if direction == "min" else 1)
        if not direction and re.search(r"loss|error|(^|_)m[sa]e$", metric):
            return cls(metric, -1)
        if not direction and re.search(r"acc|auc|precision|recall|f1|iou", metric):
            return cls(metric, 1)
        raise ValueError(
            f"best={best!r} does not say whether a larger value is better. Pass 'max:{metric}' or "
            f"'min:{metric}'."
        )

    def score(self, logs: Mapping[str, float]) -> float:
        """Return the score of an epoch; larger is better.

        Raises:
            ValueError: if the epoch has no such metric.
        """
        if self.metric not in logs:
            raise ValueError(
                f"best={self.metric!r} is not a metric of the epoch. Pass one of {', '.join(logs)}."
            )
        value = self.sign * float(logs[self.metric])
        return -math.inf if math.isnan(value) else value


def kept(positions: list[Position], keep: int, best: Position | None) -> list[Position]:
    """Return the newest checkpoints and the best one."""
    return positions[-keep:] + ([best] if best else [])
