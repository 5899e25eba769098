"""When a checkpoint is due, and which ones are kept."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass

from convoy.checkpoint.folder import Position
from convoy.engine.checkpointer import Progress

_UNITS = {"s": 1, "m": 60, "h": 3600}


class Every:
    """`every="epoch"`, a number of steps, or a time such as `"10m"`.

    Raises:
        ValueError: if it is none of them.
    """

    def __init__(self, every: int | str) -> None:
        self.steps: int | None = None
        self.seconds: float | None = None
        time_asked = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", str(every))
        if time_asked and float(time_asked[1]) > 0:
            self.seconds = float(time_asked[1]) * _UNITS[time_asked[2]]
        elif isinstance(every, int) and not isinstance(every, bool) and every >= 1:
            self.steps = every
        elif every != "epoch":
            raise ValueError(
                f"every={every!r} is not a distance between checkpoints. Pass 'epoch', a number "
                "of steps such as 1000, or a time such as '30s', '10m' or '1h'."
            )
        self.begin(0)

    def begin(self, total: int) -> None:
        """Start counting, after so many steps."""
        self._steps_then = total
        self._then = time.monotonic()

    def due(self, progress: Progress) -> bool:
        if self.steps is not None:
            # Counted from the run's first step, so that a resumed run saves at the same ones.
            return progress.total // self.steps > self._steps_then // self.steps
        if self.seconds is not None:
            return time.monotonic() - self._then >= self.seconds
        return progress.step == 0


@dataclass(frozen=True)
class Best:
    """The metric by which the best checkpoint is found, and in which direction."""

    metric: str
    sign: int

    @classmethod
    def parse(cls, asked: str) -> Best:
        """Return what the argument `best` stands for.

        Raises:
            ValueError: if it does not say which direction is better, and the name does not tell.
        """
        direction, _, metric = asked.rpartition(":")
        if direction in ("min", "max") and metric:
            return cls(metric, -1 if direction == "min" else 1)
        if not direction and re.search(r"loss|error|(^|_)m[sa]e$", metric):
            return cls(metric, -1)
        if not direction and re.search(r"acc|auc|precision|recall|f1|iou", metric):
            return cls(metric, 1)
        raise ValueError(
            f"best={asked!r} does not say whether more is better. Pass 'max:{metric}' or "
            f"'min:{metric}'."
        )

    def value(self, logs: dict[str, float]) -> float:
        """Return how good an epoch was; the larger the better.

        Raises:
            ValueError: if the epoch has no such metric.
        """
        if self.metric not in logs:
            raise ValueError(
                f"best={self.metric!r} is not among the metrics of the epoch: "
                f"{', '.join(logs)}. Pass one of them."
            )
        value = self.sign * float(logs[self.metric])
        return -math.inf if math.isnan(value) else value


def kept(positions: list[Position], keep: int, best: Position | None) -> list[Position]:
    """Return the newest checkpoints and the best one."""
    return positions[-keep:] + ([best] if best else [])
