"""Callbacks that are told of every step while the devices go on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Self

import jax
from convoy.engine.chunk_runner import ChunkRunner, Outcome
from convoy.engine.data.chunks import Chunk

Begin = Callable[[int], None]
End = Callable[[int, Any], None]


class Aside:
    """Tells of steps from a thread of its own, as their results come from the devices.

    What a callback raises is raised by `settle`; nothing is told after it.

    Args:
        begin: called with the number of a step.
        end: called with the number of a step and its outcome.
        shares: takes the outcome of a step, and returns one for each replica: both are called
            for each.
    """

    def __init__(self, begin: Begin, end: End, shares: Callable[[Any], list[Any]]) -> None:
        self.begin, self.end, self.shares = begin, end, shares
        self._steps = 0
        self._results: queue.Queue[tuple[int, int, Any] | None] = queue.Queue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._tell, name="convoy-callbacks", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._results.put(None)
        self._thread.join()

    def start_at(self, step: int) -> None:
        """Count from a step on."""
        self._steps = step

    def listening_to(self, programs: ChunkRunner) -> Listened:
        """Return what runs chunks of data in the place of programs, and tells of them."""
        return Listened(programs, self)

    def hear(self, chunk: Chunk, outcome: Any) -> None:
        """Take note of a device call that was started."""
        self._results.put((self._steps, chunk.steps, outcome))
        self._steps += chunk.steps

    def settle(self) -> None:
        """Wait until all that was heard is told."""
        self._results.join()
        if self._error is not None:
            raise self._error

    def _tell(self) -> None:
        while (result := self._results.get()) is not None:
            try:
                if self._error is None:
                    self._tell_of(*result)
            except BaseException as error:  # raised where the run can end: in `settle`
                self._error = error
            finally:
                self._results.task_done()

    def _tell_of(self, first: int, count: int, outcome: Any) -> None:
        jax.block_until_ready(outcome)
        for step in range(first, first + count):
            for share in self.shares(outcome):
                self.begin(step)
                self.end(step, share)


class Listened:
    """Runs chunks of data, and tells of each."""

    def __init__(self, programs: ChunkRunner, aside: Aside) -> None:
        self._programs, self._aside = programs, aside

    def run(self, chunk: Chunk) -> Outcome:
        outcome = self._programs.run(chunk)
        self._aside.hear(chunk, outcome)
        return outcome
