"""The log of a recording in memory: events for the timeline, and their totals."""

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from convoy.report.files import LISTS
from convoy.types import Json

# Number of rows after which a part is complete and the next file begins.
PART_ROWS = 1000
# Maximum number of spans and device calls that are kept; later ones only count in the totals.
MAX_TIMED_ROWS = 100_000
# Minimum time between two rows of metrics, and their maximum number.
METRIC_SECONDS = 0.2
MAX_METRIC_ROWS = 20_000
# Minimum time between two recorded weight updates of a pipeline, and their maximum number.
PIPELINE_SECONDS = 0.2
MAX_PIPELINES = 200


class EventLog:
    """All events of a recording; times are in seconds since its beginning.

    All methods are thread-safe.
    """

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.wall = time.time()
        self.totals: dict[str, dict[str, float]] = {}
        self.devices: dict[str, dict[str, float]] = {}
        self.programs: dict[int, dict[str, float]] = {}
        self.dropped_rows = 0
        self._rows: dict[str, list[Any]] = {name: [] for name in LISTS}
        self._counts: dict[str, int] = defaultdict(int)
        self._last: dict[str, float] = {}
        self._lock = threading.Lock()

    def seconds(self, moment: float | None = None) -> float:
        """Convert a time of `time.perf_counter`, by default now."""
        return (time.perf_counter() if moment is None else moment) - self.began

    def span(self, kind: str, begin: float, end: float) -> None:
        """Add a span of host time."""
        with self._lock:
            total = self.totals.setdefault(kind, {"seconds": 0.0, "count": 0})
            total["seconds"] += end - begin
            total["count"] += 1
            self._add_timed("spans", [kind, self._round(begin), self._round(end)])

    @contextlib.contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Add the span of host time of the block, also if it fails."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.span(kind, begin, time.perf_counter())

    def call(
        self, mode: str, program: int | None, begin: float, end: float, steps: int, samples: int
    ) -> None:
        """Add a device call."""
        with self._lock:
            total = self.devices.setdefault(
                mode, {"seconds": 0.0, "calls": 0, "steps": 0, "samples": 0, "first": begin}
            )
            total["seconds"] += end - begin
            total["calls"] += 1
            total["steps"] += steps
            total["samples"] += samples
            total["last"] = end
            if program is not None:
                self._program(program)["seconds"] += end - begin
            row = [mode, program, self._round(begin), self._round(end), steps, samples]
            self._add_timed("calls", row)

    def count_runs(self, program: int, times: int) -> None:
        """Add to the number of runs of a program, over all devices and steps."""
        with self._lock:
            self._program(program)["times"] += times

    def metrics(self, mode: str, step: int, values: dict[str, float]) -> None:
        """Add the metrics after a device call, unless the last ones are too recent."""
        with self._lock:
            if self._is_due(mode, METRIC_SECONDS, "metrics", MAX_METRIC_ROWS):
                self._add("metrics", [mode, step, round(self.seconds(), 6), values])

    def epoch(self, epoch: int, values: dict[str, float]) -> None:
        """Add the metrics of an epoch."""
        with self._lock:
            self._add("epochs", [epoch, round(self.seconds(), 6), values])

    def wants_pipeline(self) -> bool:
        """Return whether to record the next weight update of a pipeline."""
        with self._lock:
            return self._is_due("pipeline", PIPELINE_SECONDS, "pipelines", MAX_PIPELINES)

    def pipeline(self, content: Json) -> None:
        """Add a weight update of a pipeline."""
        with self._lock:
            self._add("pipelines", content)

    def host_memory(self, size: int) -> None:
        """Add the memory of the process."""
        with self._lock:
            if self._counts["host_memory"] < MAX_METRIC_ROWS:
                self._add("host_memory", [round(self.seconds(), 6), size])

    def take(self) -> tuple[Json, bool]:
        """Return the rows of the current part, and whether it is complete.

        The rows of a complete part are removed from memory.
        """
        with self._lock:
            part: Json = {name: list(rows) for name, rows in self._rows.items() if rows}
            complete = sum(map(len, part.values())) >= PART_ROWS
            if complete:
                self._rows = {name: [] for name in LISTS}
            return part, complete

    def summary(self) -> Json:
        """Return the totals."""
        with self._lock:
            return {
                "host": {kind: dict(total) for kind, total in self.totals.items()},
                "devices": {
                    mode: total | {name: self._round(total[name]) for name in ("first", "last")}
                    for mode, total in self.devices.items()
                },
                "programs": {str(number): dict(total) for number, total in self.programs.items()},
                "rows_left_out": self.dropped_rows,
            }

    def _is_due(self, event: str, interval: float, name: str, limit: int) -> bool:
        """Return whether to add an event to a list, which is limited in time and in number."""
        now = self.seconds()
        due = now - self._last.get(event, -interval) >= interval and self._counts[name] < limit
        if due:
            self._last[event] = now
        return due

    def _program(self, number: int) -> dict[str, float]:
        return self.programs.setdefault(number, {"times": 0, "seconds": 0.0})

    def _round(self, moment: float) -> float:
        return round(moment - self.began, 6)

    def _add_timed(self, name: str, row: list[Any]) -> None:
        if self._counts["spans"] + self._counts["calls"] >= MAX_TIMED_ROWS:
            self.dropped_rows += 1
        else:
            self._add(name, row)

    def _add(self, name: str, row: Any) -> None:
        self._counts[name] += 1
        self._rows[name].append(row)
