"""What is said while benchmarks run: on the terminal, and in the files of the run."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
SEPARATOR = "=" * 20


class Console:
    """Writes `[LEVEL] time: message` to the terminal and to `console.log`.

    Args:
        folder: of the run; it gets `console.log`, and `output.log` with what commands print.
        level: messages below it are not shown on the terminal; nor, above INFO, are the commands'.
    """

    def __init__(self, folder: Path, level: str = "INFO") -> None:
        self.level = logging.getLevelNamesMapping()[level]
        self._log = (folder / "console.log").open("w")
        self._output = (folder / "output.log").open("w")
        # Both streams of a command are shown, each from a thread of its own.
        self._lock = threading.Lock()

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._output.close()

    @property
    def shows_output(self) -> bool:
        return self.level <= logging.INFO

    def info(self, message: str) -> None:
        self._say("INFO", message)

    def error(self, message: str) -> None:
        self._say("ERROR", message)

    def plain(self, text: str) -> None:
        """Write a part of the result, whatever the level."""
        with self._lock:
            print(text, flush=True)
            print(text, file=self._log, flush=True)

    def output(self, line: str) -> None:
        """Write a line that a command has printed."""
        with self._lock:
            print(line, file=self._output, flush=True)
            if self.shows_output:
                print(f"  | {line}", flush=True)

    def _say(self, level: str, message: str) -> None:
        record = logging.makeLogRecord({"msg": message, "levelname": level})
        text = logging.Formatter("[%(levelname)s] %(asctime)s: %(message)s").format(record)
        with self._lock:
            print(text, file=self._log, flush=True)
            if logging.getLevelNamesMapping()[level] >= self.level:
                stream = sys.stderr if level == "ERROR" else sys.stdout
                print(text, file=stream, flush=True)
