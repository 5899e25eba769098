"""What has been seen of a run so far, in memory: rows for the timeline, and what they add up to."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

from convoy.report.files import LISTS, Json

PART_ROWS = 1000
"""Rows of a file; a run that goes on begins another one."""
TIMED_ROWS = 100_000
"""So many spans and device calls are kept one by one; later ones only count."""
METRIC_SECONDS = 0.2
"""Metrics of device calls are kept no closer together than that."""
METRIC_ROWS = 20_000
PIPELINES, PIPELINE_SECONDS = 200, 0.2
"""So many weight updates of a pipeline are kept action by action, and no closer together."""


class Notes:
    """Everything that is noted, by seconds since the beginning.

    All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.wall = time.time()
        self.totals: dict[str, dict[str, float]] = {}
        self.devices: dict[str, dict[str, float]] = {}
        self.programs: dict[int, dict[str, float]] = {}
        self.left_out = 0
        self._rows: dict[str, list[Any]] = {name: [] for name in LISTS}
        self._counts: dict[str, int] = defaultdict(int)
        self._last: dict[str, float] = {}
        self._lock = threading.Lock()

    def seconds(self, moment: float | None = None) -> float:
        """Return when a moment of `time.perf_counter` was; by default now."""
        return (time.perf_counter() if moment is None else moment) - self.began

    def span(self, kind: str, begin: float, end: float) -> None:
        """Note what the host did from one moment to another."""
        with self._lock:
            total = self.totals.setdefault(kind, {"seconds": 0.0, "count": 0})
            total["seconds"] += end - begin
            total["count"] += 1
            self._time("spans", [kind, self._round(begin), self._round(end)])

    def call(
        self,
        mode: str,
        program: int | None,
        begin: float,
        end: float,
        steps: int,
        samples: int,
    ) -> None:
        """Note that the devices ran a program."""
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
                self._ran(program)["seconds"] += end - begin
            row = [mode, program, self._round(begin), self._round(end), steps, samples]
            self._time("calls", row)

    def ran(self, program: int, times: int) -> None:
        """Note that a program did its work so many times, over all devices and steps."""
        with self._lock:
            self._ran(program)["times"] += times

    def metrics(self, mode: str, step: int, values: dict[str, float]) -> None:
        """Note what metrics were after a device call."""
        now = self.seconds()
        with self._lock:
            before = self._last.get(mode, -METRIC_SECONDS)
            if now - before >= METRIC_SECONDS and self._counts["metrics"] < METRIC_ROWS:
                self._last[mode] = now
                self._add("metrics", [mode, step, round(now, 6), values])

    def epoch(self, epoch: int, values: dict[str, float]) -> None:
        with self._lock:
            self._add("epochs", [epoch, round(self.seconds(), 6), values])

    def wants_pipeline(self) -> bool:
        """Return whether another weight update of a pipeline is to be kept."""
        now = self.seconds()
        with self._lock:
            due = now - self._last.get("pipeline", -PIPELINE_SECONDS) >= PIPELINE_SECONDS
            wanted = due and self._counts["pipelines"] < PIPELINES
            if wanted:
                self._last["pipeline"] = now
            return wanted

    def pipeline(self, content: Json) -> None:
        with self._lock:
            self._add("pipelines", content)

    def host_memory(self, size: int) -> None:
        with self._lock:
            if self._counts["host_memory"] < METRIC_ROWS:
                self._add("host_memory", [round(self.seconds(), 6), size])

    def take(self) -> tuple[Json, bool]:
        """Return the rows of the part that is being filled, and whether it is full.

        The rows of a full part are forgotten.
        """
        with self._lock:
            part: Json = {name: list(rows) for name, rows in self._rows.items() if rows}
            full = sum(map(len, part.values())) >= PART_ROWS
            if full:
                self._rows = {name: [] for name in LISTS}
            return part, full

    def summary(self) -> Json:
        """Return what everything adds up to."""
        with self._lock:
            return {
                "host": {kind: dict(total) for kind, total in self.totals.items()},
                "devices": {
                    mode: total | {name: self._round(total[name]) for name in ("first", "last")}
                    for mode, total in self.devices.items()
                },
                "programs": {str(number): dict(total) for number, total in self.programs.items()},
                "rows_left_out": self.left_out,
            }

    def _ran(self, program: int) -> dict[str, float]:
        return self.programs.setdefault(program, {"times": 0, "seconds": 0.0})

    def _round(self, moment: float) -> float:
        return round(moment - self.began, 6)

    def _time(self, name: str, row: list[Any]) -> None:
        if self._counts["spans"] + self._counts["calls"] >= TIMED_ROWS:
            self.left_out += 1
        else:
            self._add(name, row)

    def _add(self, name: str, row: Any) -> None:
        self._counts[name] += 1
        self._rows[name].append(row)
