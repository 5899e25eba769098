"""Trial loads of versions in another process.

A version contains programs, which can crash the compiler, never end, or use all memory. Each new
version is therefore loaded in a separate process first. If that process crashes or takes too long,
the version is rejected, and the server continues:

    server --- path ---> trial process: read, compile, run the example
           <-- result --

The process compiles into JAX's persistent cache, from which the server then loads the programs.

The server watches the memory of these processes, and ends one that takes too much. A limit of the
system, such as `RLIMIT_DATA`, would be no substitute. It makes a single allocation fail, after
which Keras continues in another way, or the portable programs replace the Keras model. The trial
would succeed, and the server, which has no such limit, would then take the memory.
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

from convoy.cpu import memory
from convoy.serving.admission import machine_memory
from convoy.serving.errors import ArtifactError, describe_compile_error

# A process waits this long for the next version.
IDLE_SECONDS = 60.0
# Maximum number of trials at the same time. A trial that exceeds the wait does not block others.
CONCURRENT = 2
WAIT_SECONDS = 60.0
# Requests to the server keep their share of the cores.
NICENESS = 10
# The system ends processes with the highest value first when memory runs out.
OOM_SCORE = 1000
# Maximum memory of all trials together, as a share of the machine's. The rest is for the versions
# that are served, and for requests.
MEMORY_SHARE = 1 / 2
# Python and the compiler take a quarter of this, whatever the version.
LEAST_MEMORY = 1 << 30
WATCH_SECONDS = 0.05
# A process that has more memory than this after a trial is not used again.
IDLE_MEMORY = 1 << 30
# Maximum length of a problem. An error can contain any text of the version's author.
MAX_CHARACTERS = 2000


class PassingError(ArtifactError):
    """A trial failed for a reason that may pass without a change of the version."""


class Trials:
    """The trial processes of a server.

    Args:
        max_memory: maximum memory of all trials together in bytes (default: half of the machine's).
    """

    def __init__(self, max_memory: int | None = None) -> None:
        share = max(LEAST_MEMORY, int(MEMORY_SHARE * machine_memory()))
        self._max_memory = share if max_memory is None else max_memory
        self._idle: list[Process] = []
        self._running: set[Process] = set()
        self._permits = asyncio.Semaphore(CONCURRENT)

    async def run(self, path: Path) -> None:
        """Load a version in another process.

        Raises:
            ArtifactError: if it cannot be loaded, ends the process, or needs too much memory;
                `PassingError` if that may pass.
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
            watching = asyncio.create_task(self._watch(process, path))
            try:
                answer = await _request_trial(process, path)
                if answer is None:
                    status = await process.wait()
            finally:
                watching.cancel()
                self._running.discard(process)
                if answer is None or memory_of(process) > IDLE_MEMORY:
                    await _end(process)
                else:
                    self._idle.append(process)
            if watching.done() and not watching.cancelled():
                raise watching.result()
        if answer is None:
            raise _ended(path, status)
        problem, may_pass = answer
        if problem:
            raise PassingError(problem) if may_pass else ArtifactError(problem)

    async def _watch(self, process: Process, path: Path) -> ArtifactError:
        """End the largest process when all trials together take too much memory.

        Returns:
            The error of the version, after its process was ended.
        """
        own = total = 0
        while total <= self._max_memory or own < max(map(memory_of, self._running)):
            await asyncio.sleep(WATCH_SECONDS)
            own = memory_of(process)
            total = sum(map(memory_of, self._running))
        process.kill()
        megabytes = self._max_memory >> 20
        if own <= self._max_memory:
            return PassingError(
                f"{path} was not tried to the end: with the versions that are tried at the same "
                f"time, it needs more than {megabytes} MB of memory. It is tried again later."
            )
        return ArtifactError(
            f"{path} needs more than {megabytes} MB of memory to be loaded, which is what the "
            "server may use for that on this machine. It is damaged, or too large. Export the "
            "model again, with smaller batch sizes, or use a machine with more memory."
        )

    async def _start(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        # Otherwise, the process would keep the memory of one version while it tries the next.
        environment = os.environ | {memory.VARIABLE: "0"}
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            stdin=PIPE,
            stdout=PIPE,
            env=environment,
            # Ctrl-C in a terminal is meant for the server, also while this process starts.
            start_new_session=True,
        )

    async def close(self) -> None:
        """End all processes."""
        await asyncio.gather(*map(_end, (*self._idle, *self._running)))
        self._idle.clear()


def memory_of(process: Process) -> int:
    """Return the memory that only this process uses, in bytes; 0 if the system does not tell."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{process.pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _ended(path: Path, status: int) -> ArtifactError:
    """Return the error of a version whose process ended before it answered."""
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    # The system ends a process with SIGKILL when memory runs out. An exit status of its own is that
    # of a process that could not start.
    kind = PassingError if status > 0 or status == -signal.SIGKILL else ArtifactError
    return kind(
        f"{path} ended the process that tried to load it ({how}). It is damaged, or needs more "
        "memory than is free. Export the model again, or free memory."
    )


async def _request_trial(process: Process, path: Path) -> tuple[str, bool] | None:
    """Return the problem of a version, empty without one, and whether it may pass.

    Returns `None` if the process ended.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{json.dumps(str(path))}\n".encode())
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            return None
        problem, may_pass = json.loads(line)
        return str(problem), bool(may_pass)
    except (ConnectionError, TypeError, ValueError):
        return None


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def _problem(path: Path) -> tuple[str, bool]:
    """Return the problem of a version, empty without one, and whether it may pass."""
    from convoy.serving.artifact import UnreadableError
    from convoy.serving.servable import Servable

    try:
        Servable(path, timed=False)
    except ArtifactError as error:
        problem, may_pass = str(error), isinstance(error, UnreadableError)
    except BaseException as error:  # The compiler can raise anything.
        problem, may_pass = describe_compile_error(path, error), isinstance(error, OSError)
    else:
        return "", False
    return problem[:MAX_CHARACTERS], may_pass


def main() -> None:
    """Load the versions whose paths arrive, one per line, until the server closes the pipe."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # Other systems than Linux do not have this file.
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
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
