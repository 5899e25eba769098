"""Progress of compilations on standard error, even while compiler messages are hidden."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

from convoy.units import format_clock, format_seconds

INTERVAL = 1.0
"""Seconds between two updates of a line on a terminal."""


class Console:
    """Writes to the file that was standard error when the console was opened."""

    def __init__(self) -> None:
        sys.stderr.flush()
        self._stream = os.fdopen(os.dup(2), "w")

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    @contextlib.contextmanager
    def timed(self, text: str) -> Iterator[None]:
        """Show a line for the work in the block, and its time at the end.

        On a terminal, the line shows the elapsed time; otherwise, two lines are printed.
        """
        started = time.perf_counter()
        ended = threading.Event()
        thread: threading.Thread | None = None
        if self._stream.isatty():
            thread = threading.Thread(target=self._tick, args=(text, started, ended))
            thread.start()
        else:
            self.line(f"{text} ...")
        try:
            yield
        finally:
            ended.set()
            if thread is not None:
                thread.join()
            seconds = format_seconds(time.perf_counter() - started)
            self.line(("\r" if thread else "") + f"{text}: {seconds}")

    def _tick(self, text: str, started: float, ended: threading.Event) -> None:
        while True:
            passed = format_clock(time.perf_counter() - started)
            print(f"\r{text} ... {passed}", end="", file=self._stream, flush=True)
            if ended.wait(INTERVAL):
                return
