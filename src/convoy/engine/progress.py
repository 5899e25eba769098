"""Progress from inside of long device calls.

The host learns nothing of a compiled program before its end. If the steps of a device call take
long, `WholeModelRunner` therefore runs the program several times, for about a second each. All
runs are dispatched at once, so that the host can prepare the next chunk, and `follow` waits for one
after the other:

    host     | dispatch 1 2 3 | prefetch | follow: 1    2    3 | callbacks
    device     | run 1     | run 2     | run 3     |
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Protocol

import jax
from convoy import distributed
from convoy.engine.chunk_runner import Outcome

# Something is shown at least this often.
RUN_SECONDS = 1.0
# Runs of the program for one block of streamed data. JAX dispatches some 30 runs without waiting,
# and two blocks can be in flight.
MAX_RUNS_OF_BLOCK = 8
# Work of a chunk, in samples x parameters, that takes less than a second on any device. Its speed
# is not measured.
SMALL_WORK = 10_000_000


class ProgressListener(Protocol):
    """Shows the progress of a run during its device calls."""

    def advance(self, micro_batches: int) -> None:
        """Show that some micro-batches were computed.

        Args:
            micro_batches: micro-batches of this process, over all its replicas, since the last
                call.
        """
        ...

    def note_compilation(self) -> None:
        """Show that programs are being compiled. This is called from another thread."""
        ...


_listeners: list[ProgressListener] = []
_unfinished: deque[tuple[Outcome, int]] = deque()


@contextlib.contextmanager
def reported_to(listener: ProgressListener) -> Iterator[None]:
    """Notify a listener of the progress of all device calls in the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
        _unfinished.clear()


def report(micro_batches: int) -> None:
    """Notify the listeners that the running device call has computed some micro-batches."""
    for listener in _listeners:
        listener.advance(micro_batches)


def add(outcome: Outcome, micro_batches: int) -> None:
    """Add a dispatched run to those that `follow` waits for."""
    if _listeners:
        _unfinished.append((outcome, micro_batches))


def follow(until: Outcome | None = None) -> None:
    """Wait for runs in their order, and report each.

    Args:
        until: outcome of the last one to wait for; by default all.
    """
    while _unfinished:
        outcome, micro_batches = _unfinished.popleft()
        jax.block_until_ready(outcome)
        report(micro_batches)
        if outcome is until:
            return


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Notify the listeners if the block, which compiles programs, takes long."""
    if not _listeners:
        yield
        return

    def note() -> None:
        for listener in _listeners:
            listener.note_compilation()

    timer = threading.Timer(RUN_SECONDS, note)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


class RunLengths:
    """The number of steps in each run of one program.

    The first two runs have one step: the first compiles the program, the second gives its speed.
    """

    def __init__(self) -> None:
        self._runs = 0
        self._step_seconds: float | None = None

    def is_measured(self) -> bool:
        return self._step_seconds is not None

    def next(self, steps: int, left: int, *, is_block: bool) -> int:
        """Return the number of steps in the next run.

        Args:
            steps: steps of the chunk.
            left: steps of the chunk that are not dispatched.
            is_block: whether the chunk is a block of streamed data.
        """
        if self._step_seconds is None:
            return 1
        seconds = RUN_SECONDS
        if is_block:
            seconds = max(seconds, steps * self._step_seconds / MAX_RUNS_OF_BLOCK)
        fitting = max(1, round(seconds / max(1e-9, self._step_seconds)))
        # No short run at the end.
        return left if left < 2 * fitting else fitting

    def note(self, seconds: float) -> None:
        """Set the time of the last run, of one step; all processes use that of the first."""
        self._runs += 1
        if self._runs > 1:
            self._step_seconds = distributed.from_first(seconds)
