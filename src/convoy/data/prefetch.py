"""Batches that worker processes make before they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
from convoy.data.worker_pool import SLOTS, Job, WorkerPool

Task = TypeVar("Task")
Result = TypeVar("Result")


class Prefetcher(Generic[Task, Result]):
    """Makes batches in order, and lets worker processes make the next ones in advance.

    Args:
        job: maker of the batches.
        task: function that returns the job's task for a position.
        workers: number of processes; 0 makes each batch when it is read.
        slots: number of batches that each worker may be ahead.
    """

    def __init__(
        self,
        job: Job[Task, Result],
        task: Callable[[int], Task],
        workers: int,
        slots: int = SLOTS,
    ) -> None:
        self.job = job
        self.task = task
        self.workers = workers
        self.slots = slots
        self._pool: WorkerPool[Task, Result] | None = None
        self._submitted: deque[int] = deque()

    def take(self, position: int) -> tuple[np.ndarray, Result]:
        """Return the batch at a position, and the job's result beside it."""
        if not self.workers:
            out = np.empty(self.job.shape, self.job.dtype)
            return out, self.job.run(self.task(position), out)
        if self._pool is None:
            self._pool = WorkerPool(self.job, self.workers, self.slots)
        # A run that jumps, to resume for one, discards what was made for where it was.
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
