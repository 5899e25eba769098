"""Messages of a benchmark run, on the terminal and in log files."""

import logging
import sys
import threading
from pathlib import Path
from typing import Literal, Self

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
_FORMAT = logging.Formatter("[%(levelname)s] %(asctime)s: %(message)s")


class Console:
    """Writes messages as `[LEVEL] time: message`, and the output of commands.

    Args:
        folder: folder of the files `console.log`, for messages, and `output.log`, for the output
            of commands.
        level: lowest level that is shown on the terminal. Above INFO, output is not shown.
    """

    def __init__(self, folder: Path, level: Level = "INFO") -> None:
        self.level = logging.getLevelNamesMapping()[level]
        self._log = (folder / "console.log").open("w")
        self._output = (folder / "output.log").open("w")
        # Each of the two streams of a command is read by a separate thread.
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._output.close()

    @property
    def shows_output(self) -> bool:
        return self.level <= logging.INFO

    def info(self, message: str) -> None:
        self._write(logging.INFO, message)

    def error(self, message: str) -> None:
        self._write(logging.ERROR, message)

    def plain(self, text: str) -> None:
        """Write text without a prefix, at any level."""
        with self._lock:
            print(text, flush=True)
            print(text, file=self._log, flush=True)

    def output(self, line: str) -> None:
        """Write a line of a command's output."""
        with self._lock:
            print(line, file=self._output, flush=True)
            if self.shows_output:
                print(f"  | {line}", flush=True)

    def _write(self, level: int, message: str) -> None:
        name = logging.getLevelName(level)
        text = _FORMAT.format(logging.makeLogRecord({"msg": message, "levelname": name}))
        with self._lock:
            print(text, file=self._log, flush=True)
            if level >= self.level:
                stream = sys.stderr if level == logging.ERROR else sys.stdout
                print(text, file=stream, flush=True)
