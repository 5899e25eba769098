"""Callbacks that are called for every step while the devices continue."""

import queue
import threading
from collections.abc import Callable
from typing import Self

import jax
from convoy.engine.chunk_runner import ChunkRunner, FunctionRunner, Outcome
from convoy.engine.data.chunks import Chunk

Begin = Callable[[int], None]
End = Callable[[int, Outcome], None]


class AsyncCallbacks:
    """Calls callbacks from a separate thread, as results arrive from the devices.

    `wait` raises the exception of a callback; after it, no more callbacks are called.

    Args:
        begin: callback with the number of a step.
        end: callback with the number of a step and its outcome.
        by_replica: function that returns the outcome of each replica, given that of a step. Both
            callbacks are called once per replica.
    """

    def __init__(
        self, begin: Begin, end: End, by_replica: Callable[[Outcome], list[Outcome]]
    ) -> None:
        self.begin, self.end, self.by_replica = begin, end, by_replica
        self._step = 0
        self._results: queue.Queue[tuple[int, int, Outcome] | None] = queue.Queue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="convoy-callbacks", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._results.put(None)
        self._thread.join()

    def start_at(self, step: int) -> None:
        """Set the number of the next step."""
        self._step = step

    def wrap(self, runner: ChunkRunner) -> ChunkRunner:
        """Return a runner whose device calls are followed by callbacks."""

        def run(chunk: Chunk) -> Outcome:
            outcome = runner.run(chunk)
            self._results.put((self._step, chunk.steps, outcome))
            self._step += chunk.steps
            return outcome

        return FunctionRunner(run)

    def wait(self) -> None:
        """Wait until the callbacks for all submitted device calls have returned."""
        self._results.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (result := self._results.get()) is not None:
            try:
                if self._error is None:
                    self._call(*result)
            except BaseException as error:  # raised where the run can end: in `wait`
                self._error = error
            finally:
                self._results.task_done()

    def _call(self, first: int, steps: int, outcome: Outcome) -> None:
        jax.block_until_ready(outcome)
        for step in range(first, first + steps):
            for own in self.by_replica(outcome):
                self.begin(step)
                self.end(step, own)
