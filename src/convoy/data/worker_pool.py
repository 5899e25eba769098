"""Processes that make batches, in the order in which they were asked for.

A pool starts one process, which has everything imported and then divides itself. Workers end when
the process that asks them is gone, however it went. What they make comes back in memory that both
share, which nothing is left of afterwards.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from convoy.distributed import COORDINATOR

# Of each worker: one that it fills, and one that waits to be read.
SLOTS = 2
_SHARED = Path("/dev/shm")


class Job(Protocol):
    """Work that can be sent to another process."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def run(self, task: Any, out: np.ndarray) -> Any:
        """Fill an array of `shape` and `dtype`, and return what else there is, which is small."""
        ...


class _Failure(NamedTuple):
    error: Exception


class WorkerPool:
    """Processes that do one job.

    Args:
        job: what is done for each task.
        count: how many processes.
        slots: tasks of each that can be waited for at a time.
    """

    def __init__(self, job: Job, count: int, slots: int = SLOTS) -> None:
        self.job = job
        self.capacity = count * slots
        """How many tasks can be waited for at a time."""
        self._size = int(np.prod(job.shape)) * job.dtype.itemsize
        self._asked: deque[int] = deque()
        self._number = 0
        folder = _SHARED if _SHARED.is_dir() else None
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, max(1, self._size * self.capacity))
            self._memory = mmap.mmap(file.fileno(), 0)
            self._workers = self._start(file.fileno(), count)

    def _start(self, memory: int, count: int) -> list[Connection]:
        pairs = [socket.socketpair() for _ in range(count)]
        theirs = [pair[1].fileno() for pair in pairs]
        command = "from convoy.data.worker_pool import serve; serve()"
        # Workers compute nothing on devices, use one core each, and are no process of a launch.
        quiet = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        inherited = {k: v for k, v in os.environ.items() if k != COORDINATOR}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", command, str(memory), *map(str, theirs)],
            pass_fds=[memory, *theirs],
            stdin=subprocess.PIPE,
            env=inherited | quiet,
        )
        for _, other in pairs:
            other.close()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            # The job may be defined beside the user's script, which `-P` keeps off the path.
            pickle.dump(sys.path, stdin)
            pickle.dump(self.job, stdin)
        workers = [Connection(own.detach()) for own, _ in pairs]
        self._end = weakref.finalize(self, _end, workers, self._process)
        return workers

    def __len__(self) -> int:
        """Return how many tasks are waited for."""
        return len(self._asked)

    def ask(self, task: Any) -> None:
        """Have a task done; at most `capacity` of them at a time."""
        assert len(self._asked) < self.capacity
        slot = self._number % self.capacity
        self._asked.append(slot)
        self._number += 1
        with contextlib.suppress(OSError):  # it is gone, which `take` will say
            self._worker(slot).send((slot, task))

    def take(self) -> tuple[np.ndarray, Any]:
        """Wait for the task that was asked for first; return a copy of its array, and the rest.

        Raises:
            Exception: what the worker has raised.
            RuntimeError: if the worker is gone.
        """
        slot = self._asked.popleft()
        result = self._receive(slot)
        if isinstance(result, _Failure):
            raise result.error
        return _array(self._memory, self.job, slot, self._size).copy(), result

    def forget(self) -> None:
        """Wait for all tasks, and drop what comes of them.

        Raises:
            RuntimeError: if a worker is gone.
        """
        while self._asked:
            self._receive(self._asked.popleft())

    def _receive(self, slot: int) -> Any:
        try:
            return self._worker(slot).recv()
        except (EOFError, OSError):
            self.close()
            raise RuntimeError(
                "A worker process that makes batches has ended before its work. Its last words, if "
                "it had any, are above; the system may have ended it for want of memory."
            ) from None

    def close(self) -> None:
        """End the processes."""
        self._end()

    def _worker(self, slot: int) -> Connection:
        return self._workers[slot % len(self._workers)]


def _end(workers: list[Connection], process: subprocess.Popen) -> None:
    for worker in workers:
        worker.close()
    process.wait()


def _array(memory: mmap.mmap, job: Job, slot: int, size: int) -> np.ndarray:
    return np.frombuffer(memory, job.dtype, size // job.dtype.itemsize, slot * size).reshape(
        job.shape
    )


def serve() -> None:
    """Divide into workers, and wait for them: what the pool's process runs."""
    memory, *sockets = (int(word) for word in sys.argv[1:])
    # These reach whole groups of processes. The one that asks decides when all is done.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.path[:] = pickle.load(sys.stdin.buffer)
    job: Job = pickle.load(sys.stdin.buffer)
    workers = []
    for own in sockets:
        worker = os.fork()
        if not worker:
            for other in sockets:
                if other != own:
                    os.close(other)
            _work(job, mmap.mmap(memory, 0), Connection(own))
        workers.append(worker)
    for own in sockets:
        os.close(own)
    for worker in workers:
        os.waitpid(worker, 0)


def _work(job: Job, memory: mmap.mmap, asks: Connection) -> None:
    size = int(np.prod(job.shape)) * job.dtype.itemsize
    with contextlib.suppress(EOFError, OSError):
        for slot, task in _tasks(asks):
            try:
                result = job.run(task, _array(memory, job, slot, size))
            except Exception as error:
                result = _Failure(error)
            asks.send(result)
    os._exit(0)


def _tasks(asks: Connection) -> Iterator[tuple[int, Any]]:
    while True:
        yield asks.recv()
