"""Runs a command: its output is shown as it comes and kept in files, and its time is limited."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

# Seconds that a command has to end by itself, once it was told to.
GRACE = 10
NOT_FOUND, TIMED_OUT = 127, 124


@dataclass(frozen=True)
class Execution:
    """How a command went.

    Attributes:
        exit_status: 124 after a timeout, 127 if it could not be started.
        output: all of the standard output, and all of the standard error.
        start: seconds since the epoch.
        seconds: how long it took.
    """

    exit_status: int
    output: tuple[str, str]
    start: float
    seconds: float


def execute(
    words: Sequence[str],
    folder: Path,
    *,
    location: Path,
    environment: Mapping[str, str],
    timeout: float | None,
    show: Callable[[str], None],
) -> Execution:
    """Run a command.

    Args:
        words: the program and its arguments.
        folder: where `stdout` and `stderr` are written, as they come.
        location: where it is run.
        environment: its variables.
        timeout: after so many seconds it, and all that it started, are told to end.
        show: is called with every line of both.
    """
    start, clock = time.time(), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "stdout", folder / "stderr"]

    def done(exit_status: int, more: str = "") -> Execution:
        if more:
            show(more)
            with files[1].open("a") as file:
                print(more, file=file)
        output = (files[0].read_text(errors="replace"), files[1].read_text(errors="replace"))
        return Execution(exit_status, output, start, time.monotonic() - clock)

    for file in files:
        file.write_text("")
    try:
        process = subprocess.Popen(
            words,
            cwd=location,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return done(NOT_FOUND, f"{words[0]}: {error.strerror or error}")
    with process:
        readers = [
            threading.Thread(target=_copy, args=(pipe, file, show), daemon=True)
            for pipe, file in zip((process.stdout, process.stderr), files, strict=True)
        ]
        for reader in readers:
            reader.start()
        try:
            exit_status, more = process.wait(timeout), ""
        except subprocess.TimeoutExpired:
            exit_status, more = TIMED_OUT, f"Timeout ({timeout:g})"
        finally:
            # Whatever it has left behind, too: it would hold the pipes open.
            _end_group(process)
            for reader in readers:
                reader.join()
    return done(exit_status, more)


def _copy(pipe: IO[bytes], file: Path, show: Callable[[str], None]) -> None:
    with file.open("wb", buffering=0) as copy:
        for line in pipe:
            copy.write(line)
            show(line.decode(errors="replace").rstrip("\n"))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Tell a command and all that it started to end, and kill what does not."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
            process.wait(GRACE)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
