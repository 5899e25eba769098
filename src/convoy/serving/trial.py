"""Trial loads of versions in another process.

A version contains programs, which can crash the compiler, never end, or use all memory. Each new
version is therefore loaded in a separate process first. If that process crashes or takes too long,
the version is rejected, and the server continues:

    server --- path ---> trial process: read, compile, run the example
           <-- result --

The process compiles into JAX's persistent cache, from which the server then loads the programs.
"""

import asyncio
import contextlib
import json
import os
import resource
import select
import signal
import sys
import threading
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from convoy.serving.errors import ArtifactError, describe_compile_error

# A process waits this long for the next version.
IDLE_SECONDS = 60.0
# Maximum number of trials at the same time. A trial that exceeds the wait does not block others.
CONCURRENT = 2
WAIT_SECONDS = 60.0
# Requests to the server keep their share of the cores.
NICENESS = 10


class Trials:
    """The trial processes of a server."""

    def __init__(self) -> None:
        self._idle: list[Process] = []
        self._running: set[Process] = set()
        self._permits = asyncio.Semaphore(CONCURRENT)

    async def run(self, path: Path) -> None:
        """Load a version in another process.

        Raises:
            ArtifactError: if it cannot be loaded, or ends the process.
        """
        permitted = False
        with contextlib.suppress(TimeoutError):
            permitted = await asyncio.wait_for(self._permits.acquire(), WAIT_SECONDS)
        try:
            await self._run(path)
        finally:
            if permitted:
                self._permits.release()

    async def _run(self, path: Path) -> None:
        answer, status = None, 0
        # A process that was idle may end by itself when the next version arrives.
        while answer is None and status == 0:
            process = await self._start()
            self._running.add(process)
            try:
                answer = await _request_trial(process, path)
                if answer is None:
                    status = await process.wait()
            finally:
                self._running.discard(process)
                if answer is None:
                    await _end(process)
                else:
                    self._idle.append(process)
        if answer is None:
            how = signal.Signals(-status).name if status < 0 else f"status {status}"
            raise ArtifactError(
                f"{path} ended the process that tried to load it ({how}). It is damaged, or needs "
                "more memory than is free. Export the model again, or free memory."
            )
        if answer:
            raise ArtifactError(answer)

    async def _start(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, stdin=PIPE, stdout=PIPE
        )

    async def close(self) -> None:
        """End all processes."""
        await asyncio.gather(*map(_end, (*self._idle, *self._running)))
        self._idle.clear()


async def _request_trial(process: Process, path: Path) -> str | None:
    """Return the problem of a version, empty without one, or `None` if the process ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{json.dumps(str(path))}\n".encode())
        await process.stdin.drain()
        line = await process.stdout.readline()
        return str(json.loads(line)) if line else None
    except (ConnectionError, ValueError):
        return None


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def _problem(path: Path) -> str:
    from convoy.serving.servable import Servable

    try:
        Servable(path, timed=False)
    except ArtifactError as error:
        return str(error)
    except BaseException as error:  # The compiler can raise anything.
        return describe_compile_error(path, error)
    return ""


def main() -> None:
    """Load the versions whose paths arrive, one per line, until the server closes the pipe."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGINT, signal.SIGTERM):
        # A signal to the process group is meant for the server, which then closes the pipe.
        signal.signal(number, signal.SIG_IGN)
    # Output of libraries must not be read as an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    paths, answered = os.fdopen(os.dup(0), "r"), threading.Event()

    def load(path: Path) -> None:
        answers.write(f"{json.dumps(_problem(path))}\n")
        answers.flush()
        answered.set()

    while True:
        # The main thread waits for the pipe even while a version is loaded, because a load may
        # never end.
        readable, _, _ = select.select([paths], [], [], IDLE_SECONDS)
        line = paths.readline() if readable else ""
        if line:
            answered.clear()
            threading.Thread(target=load, args=(Path(json.loads(line)),), daemon=True).start()
        elif readable or answered.is_set():
            os._exit(0)


if __name__ == "__main__":
    main()
