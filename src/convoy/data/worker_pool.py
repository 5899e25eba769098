"""Batches that a pool of processes makes before they are read, in the order of submission.

The pool starts one process, which imports everything and then forks the workers. These exit when
the process that owns the pool is gone, even if it was killed. Arrays come back in shared memory,
which has no name and is freed with the processes.

    this process                                worker 0    worker 1
    submit(task 0..3) ---- sockets ---->        0, 2        1, 3
                                                 |           |
    take() <---- shared memory: slot  0    1    2    3
                 one slot being filled and one waiting, for each worker
"""

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
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from convoy.context import blocked
from convoy.distributed.process import COORDINATOR
from convoy.error_messages import system_reason
from convoy.units import format_bytes

# For each worker, one that it fills and one that waits to be read.
SLOTS = 2
_SHARED = Path("/dev/shm")

Task = TypeVar("Task", contravariant=True)
Result = TypeVar("Result", covariant=True)


class Job(Protocol[Task, Result]):
    """Work that can be sent to another process."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def run(self, task: Task, out: np.ndarray) -> Result:
        """Fill an array of `shape` and `dtype`, and return the rest, which is small."""
        ...


class WorkerPool(Generic[Task, Result]):
    """Processes that run one job for many tasks.

    Args:
        job: work that is done for each task.
        count: number of processes.
        slots: number of tasks of each process that can be pending.

    Raises:
        RuntimeError: if there is no memory for the batches.
    """

    def __init__(self, job: Job[Task, Result], count: int, slots: int = SLOTS) -> None:
        self.job = job
        self.capacity = count * slots
        """Maximum number of pending tasks."""
        self._size = int(np.prod(job.shape)) * job.dtype.itemsize
        self._pending: deque[int] = deque()
        self._number = 0
        folder = _SHARED if _SHARED.is_dir() else None
        with tempfile.TemporaryFile(dir=folder) as file:
            self._allocate(file.fileno(), folder)
            self._memory = mmap.mmap(file.fileno(), 0)
            self._workers = self._start(file.fileno(), count)

    def _allocate(self, memory: int, folder: Path | None) -> None:
        size = max(1, self._size * self.capacity)
        try:
            os.posix_fallocate(memory, 0, size)
        except OSError as error:
            raise RuntimeError(
                f"The {self.capacity} batches of the worker processes need {format_bytes(size)} in "
                f"{folder or tempfile.gettempdir()}: {system_reason(error)}. Use fewer workers or "
                "smaller batches, or make that file system larger."
            ) from error

    def _start(self, memory: int, count: int) -> list[Connection]:
        pairs = [socket.socketpair() for _ in range(count)]
        theirs = [pair[1].fileno() for pair in pairs]
        command = "from convoy.data.worker_pool import serve; serve()"
        # Workers compute nothing on devices, use one core each, and take no part in a launch.
        settings = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        # Damaged images are reported once, by their names.
        settings["OPENCV_LOG_LEVEL"] = "ERROR"
        inherited = {k: v for k, v in os.environ.items() if k != COORDINATOR}
        # Ctrl-C in a terminal reaches the process while it imports packages, too.
        with blocked(signal.SIGINT):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", command, str(memory), *map(str, theirs)],
                pass_fds=[memory, *theirs],
                stdin=subprocess.PIPE,
                env=inherited | settings,
            )
        for _, other in pairs:
            other.close()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            # The job may be defined next to the user's script, which `-P` keeps off the path.
            pickle.dump(sys.path, stdin)
            pickle.dump(self.job, stdin)
        workers = [Connection(own.detach()) for own, _ in pairs]
        self._terminate = weakref.finalize(self, _terminate, workers, self._process)
        return workers

    def __len__(self) -> int:
        """Return the number of pending tasks."""
        return len(self._pending)

    def submit(self, task: Task) -> None:
        """Submit a task; at most `capacity` may be pending."""
        assert len(self._pending) < self.capacity
        slot = self._number % self.capacity
        self._pending.append(slot)
        self._number += 1
        with contextlib.suppress(OSError):  # the worker is gone, which `take` reports
            self._worker(slot).send((slot, task))

    def take(self) -> tuple[np.ndarray, Result]:
        """Wait for the oldest pending task; return a copy of its array, and its result.

        Raises:
            Exception: the exception that the worker raised.
            RuntimeError: if the worker has exited.
        """
        slot = self._pending.popleft()
        result, error = self._receive(slot)
        if error is not None:
            raise error
        return _array(self._memory, self.job, slot, self._size).copy(), result

    def discard(self) -> None:
        """Wait for all pending tasks, and drop their results.

        Raises:
            RuntimeError: if a worker has exited.
        """
        while self._pending:
            self._receive(self._pending.popleft())

    def _receive(self, slot: int) -> tuple[Any, Exception | None]:
        try:
            return self._worker(slot).recv()
        except (EOFError, OSError):
            self.close()
            raise RuntimeError(
                "A worker process that makes batches exited unexpectedly. Its stderr is above, if "
                "it wrote any; it may have been killed for lack of memory. Use fewer workers."
            ) from None

    def close(self) -> None:
        """Terminate the processes."""
        self._terminate()

    def _worker(self, slot: int) -> Connection:
        return self._workers[slot % len(self._workers)]


class Prefetcher(Generic[Task, Result]):
    """Makes batches in order, and lets worker processes make the next ones in advance.

    Args:
        job: maker of the batches.
        task: function that returns the job's task for a position.
        workers: number of processes; 0 makes each batch when it is read.
        slots: number of batches that each worker may be ahead.
    """

    def __init__(
        self, job: Job[Task, Result], task: Callable[[int], Task], workers: int, slots: int = SLOTS
    ) -> None:
        self.job = job
        self.task = task
        self.workers = workers
        self.slots = slots
        self._pool: WorkerPool[Task, Result] | None = None
        self._submitted: deque[int] = deque()

    def take(self, position: int) -> tuple[np.ndarray, Result]:
        """Return the batch at a position, and the job's result for it."""
        if not self.workers:
            out = np.empty(self.job.shape, self.job.dtype)
            return out, self.job.run(self.task(position), out)
        if self._pool is None:
            self._pool = WorkerPool(self.job, self.workers, self.slots)
        # A run that jumps to another position, for example to resume, discards prepared batches.
        if self._submitted and self._submitted[0] != position:
            self._pool.discard()
            self._submitted.clear()
        following = self._submitted[-1] + 1 if self._submitted else position
        while len(self._submitted) < self._pool.capacity:
            self._pool.submit(self.task(following))
            self._submitted.append(following)
            following += 1
        self._submitted.popleft()
        return self._pool.take()

    def close(self) -> None:
        """Terminate the worker processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
            self._submitted.clear()


def _terminate(workers: list[Connection], process: subprocess.Popen) -> None:
    # A worker exits when its connection closes.
    for worker in workers:
        worker.close()
    process.wait()


def _array(memory: mmap.mmap, job: Job[Any, Any], slot: int, size: int) -> np.ndarray:
    count = size // job.dtype.itemsize
    return np.frombuffer(memory, job.dtype, count, slot * size).reshape(job.shape)


def serve() -> None:
    """Fork the workers and wait for them: the main function of the pool's process."""
    memory, *sockets = (int(word) for word in sys.argv[1:])
    # Ctrl-C and termination reach the whole process group. The pool's owner decides when to stop.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.path[:] = pickle.load(sys.stdin.buffer)
    job: Job[Any, Any] = pickle.load(sys.stdin.buffer)
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


def _work(job: Job[Any, Any], memory: mmap.mmap, connection: Connection) -> None:
    size = int(np.prod(job.shape)) * job.dtype.itemsize
    with contextlib.suppress(EOFError, OSError):
        while True:
            slot, task = connection.recv()
            try:
                connection.send((job.run(task, _array(memory, job, slot, size)), None))
            except Exception as error:
                connection.send((None, error))
    os._exit(0)
