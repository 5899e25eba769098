"""What a person sees while a run goes on: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from convoy.units import format_clock

FILLED, EMPTY = "━", "─"


class Bar:
    """A line that is drawn over itself.

    Args:
        total: what there is to do.
        stream: a terminal.
    """

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total = total
        self.stream = stream
        self._start = time.perf_counter()
        self._first: tuple[int, float] | None = None

    def say(self, text: str) -> None:
        """Draw a text until the next thing is drawn."""
        width = shutil.get_terminal_size().columns
        self.stream.write(f"\r\x1b[2K{text[: width - 1]}")
        self.stream.flush()

    def draw(self, done: int, label: str, values: str) -> None:
        now = time.perf_counter()
        left = self._time_left(done, now)
        share = done / self.total
        text = f" {share:4.0%}  {values}  {left} left"
        room = shutil.get_terminal_size().columns - len(label) - len(text) - 3
        length = max(6, min(30, room))
        filled = round(length * share)
        self.say(f"{label} {FILLED * filled}{EMPTY * (length - filled)}{text}")

    def _time_left(self, done: int, now: float) -> str:
        # The first piece of work has the compilation in it; the pace is that of the others.
        if self._first is None:
            self._first = done, now
        first, since = self._first
        if done == first:
            first, since = 0, self._start
        return format_clock((now - since) / max(1, done - first) * (self.total - done))

    def keep(self, text: str) -> None:
        """Write a line above the bar, which stays."""
        self.stream.write(f"\r\x1b[2K{text}\n")
        self.stream.flush()

    def end(self) -> None:
        self.stream.write("\r\x1b[2K")
        self.stream.flush()


class Output:
    """Where a run speaks: to a terminal as a bar, to anything else in lines.

    Args:
        stream: by default the standard output.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        self.is_terminal = self.stream.isatty()
        self._bar: Bar | None = None

    def line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.keep(text)
        else:
            print(text, file=self.stream, flush=True)

    def begin(self, total: int, text: str) -> None:
        """Begin some work of so many steps."""
        if self.is_terminal:
            self._bar = Bar(total, self.stream)
            self._bar.say(text)

    def advance(self, done: int, label: str, values: Mapping[str, str]) -> None:
        if self._bar is not None:
            self._bar.draw(done, label, "  ".join(f"{k} {v}".strip() for k, v in values.items()))

    def end(self) -> None:
        if self._bar is not None:
            self._bar.end()
            self._bar = None
