"""Execution of a command: output shown as it arrives and kept in files, with a time limit."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from convoy.error_messages import system_reason

# The time that a command has to end after SIGTERM.
GRACE_SECONDS = 10
NOT_FOUND, TIMED_OUT = 127, 124


@dataclass(frozen=True)
class Execution:
    """Result of a command.

    Attributes:
        exit_status: exit status; 124 after a timeout, 127 if the command could not be started.
        stdout: complete standard output.
        stderr: complete standard error.
        start: time of the start.
        seconds: duration.
    """

    exit_status: int
    stdout: str
    stderr: str
    start: datetime
    seconds: float


def execute(
    command: Sequence[str],
    logs: Path,
    *,
    folder: Path,
    environment: Mapping[str, str],
    timeout: float | None,
    show: Callable[[str], None],
) -> Execution:
    """Run a command.

    Args:
        command: program and its arguments.
        logs: folder of the files `stdout` and `stderr`, written as output arrives.
        folder: folder to run in.
        environment: environment variables.
        timeout: seconds after which the command and everything that it started are ended.
        show: callback for each line of output.
    """
    start, clock = datetime.now(UTC), time.monotonic()
    logs.mkdir(parents=True, exist_ok=True)
    stdout, stderr = files = logs / "stdout", logs / "stderr"
    for file in files:
        file.write_text("")
    message = ""
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        exit_status, message = NOT_FOUND, f"{command[0]}: {system_reason(error)}"
    else:
        try:
            exit_status = _wait(process, files, timeout, show)
        except subprocess.TimeoutExpired:
            exit_status, message = TIMED_OUT, f"Timeout ({timeout:g})"
    if message:
        show(message)
        with stderr.open("a") as opened:
            print(message, file=opened)
    return Execution(
        exit_status,
        stdout.read_text(errors="replace"),
        stderr.read_text(errors="replace"),
        start,
        time.monotonic() - clock,
    )


def _wait(
    process: subprocess.Popen[bytes],
    files: Sequence[Path],
    timeout: float | None,
    show: Callable[[str], None],
) -> int:
    """Copy the output of a command until it ends, and return its exit status.

    Raises:
        subprocess.TimeoutExpired: if it did not end in time.
    """
    with process:
        readers = [
            threading.Thread(target=_copy, args=(pipe, file, show), daemon=True)
            for pipe, file in zip((process.stdout, process.stderr), files, strict=True)
        ]
        for reader in readers:
            reader.start()
        try:
            return process.wait(timeout)
        finally:
            # Processes that the command left behind would keep the pipes open.
            _end_group(process)
            for reader in readers:
                reader.join()


def _copy(pipe: IO[bytes], file: Path, show: Callable[[str], None]) -> None:
    with file.open("wb", buffering=0) as copy:
        for line in pipe:
            copy.write(line)
            show(line.decode(errors="replace").rstrip("\n"))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command and everything that it started, by SIGTERM and then by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
