"""Batches that worker processes make before they are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from convoy.data.worker_pool import SLOTS, Job, WorkerPool


class Ahead:
    """Makes batches one after the other, and has workers make those that come next.

    Args:
        job: what makes a batch.
        task: returns what the job needs for the batch at a place.
        workers: how many processes; 0 makes each batch where and when it is asked for.
        slots: batches that each worker may be ahead.
    """

    def __init__(
        self, job: Job, task: Callable[[int], Any], workers: int, slots: int = SLOTS
    ) -> None:
        self.job = job
        self.task = task
        self.workers = workers
        self.slots = slots
        self._pool: WorkerPool | None = None
        self._asked: deque[int] = deque()

    def take(self, position: int) -> tuple[np.ndarray, Any]:
        """Return the batch at a place, and what its job returned beside it."""
        if not self.workers:
            out = np.empty(self.job.shape, self.job.dtype)
            return out, self.job.run(self.task(position), out)
        if self._pool is None:
            self._pool = WorkerPool(self.job, self.workers, self.slots)
        if self._asked and self._asked[0] != position:
            self._pool.forget()
            self._asked.clear()
        following = self._asked[-1] + 1 if self._asked else position
        while len(self._asked) < self._pool.capacity:
            self._pool.ask(self.task(following))
            self._asked.append(following)
            following += 1
        self._asked.popleft()
        return self._pool.take()

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
            self._asked.clear()
