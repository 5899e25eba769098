"""One epoch on the host: device calls, the transfer of data for the next ones, and callbacks."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NamedTuple

from convoy.engine import progress
from convoy.engine.chunk_runner import ChunkRunner, Outcome
from convoy.engine.data.chunks import Feed
from convoy.engine.observer import EpochCallbacks
from convoy.engine.steps_per_execution import StepsPerExecution

# `steps_per_execution` steps are one device call, or several if the data comes in smaller chunks.
# A device call is asynchronous: it returns before the device has computed. The host therefore
# reads and transfers the next chunk while the device computes, and waits only where a callback
# reads a result:
#
#     host     | begin | dispatch 1 | prefetch 2      | end, begin | dispatch 2 | prefetch 3 ...
#     device           | compute 1                        | compute 2
#
# `end` receives the outcomes of all device calls since `begin`.


class StepFunctions(NamedTuple):
    """The functions that an epoch calls between device calls.

    Attributes:
        begin: callback with the number of the first step.
        batch_end: callback with the number of the last step, and the outcome.
        end: function that is called after the callbacks, with the number of the last step and the
            outcome of every device call; it returns whether the run stops.
    """

    begin: Callable[[int], None]
    batch_end: Callable[[int, Outcome], None]
    end: Callable[[int, list[Outcome]], bool]


def callbacks_per_execution(
    functions: StepFunctions,
    steps_per_execution: StepsPerExecution,
    join: Callable[[list[Outcome]], Outcome],
) -> EpochCallbacks:
    """Return callbacks that are called once per `steps_per_execution` steps.

    Args:
        functions: the functions to call.
        steps_per_execution: steps between callbacks.
        join: function that joins the outcomes of several device calls.
    """
    last_of_execution = 0

    def begin(step: int) -> None:
        nonlocal last_of_execution
        last_of_execution = step + steps_per_execution.value - 1
        functions.begin(step)

    def end(step: int, outcomes: list[Outcome]) -> bool:
        # Keras counts a short last execution as a complete one.
        last = step if steps_per_execution.automatic else last_of_execution
        functions.batch_end(last, join(outcomes))
        return functions.end(step, outcomes)

    return EpochCallbacks(begin, end)


def run_epoch(
    feed: Feed,
    runner: ChunkRunner,
    callbacks: EpochCallbacks,
    steps_per_execution: StepsPerExecution,
    done: int = 0,
    max_steps: int | None = None,
) -> int:
    """Run the rest of an epoch, with callbacks after every `steps_per_execution` steps.

    Args:
        feed: the data of the epoch.
        runner: runner of its chunks.
        callbacks: functions that are called before and after `steps_per_execution` steps.
        steps_per_execution: steps between callbacks.
        done: steps of the epoch that are done.
        max_steps: maximum number of steps in one device call.

    Returns:
        The number of the epoch's steps that are done.
    """
    uninterrupted = Uninterrupted()
    while True:
        steps = steps_per_execution.value
        start = time.perf_counter()
        # As in stock Keras, the first callback of an epoch runs before its data is read, except for
        # an input of unknown length, which may be at its end.
        is_first = done == 0 and feed.steps is not None
        if is_first:
            callbacks.begin(done)
        chunk = feed.next(min(steps, max_steps or steps))
        if chunk is None:
            return done
        if not is_first:
            callbacks.begin(done)
        left = steps
        outcomes: list[Outcome] = []
        while chunk is not None:
            with uninterrupted:
                outcomes.append(runner.run(chunk))
            left -= chunk.steps
            following = left or steps
            feed.prefetch(min(following, max_steps or following))
            chunk = feed.next(min(left, max_steps or left)) if left else None
        done += steps - left
        if steps_per_execution.automatic:
            steps_per_execution.adapt(steps - left, outcomes, start)
        progress.follow()
        if callbacks.end(done - 1, outcomes):
            return done


class Uninterrupted:
    """A context that delays Ctrl-C until the end of the block; a second one takes effect at once.

    A device call takes the values of the variables away and returns new ones. An exception in
    between would leave the model without weights.
    """

    def __init__(self) -> None:
        self._is_pending = False
        self._previous: Callable[[int, FrameType | None], object] | None = None

    def __enter__(self) -> None:
        self._is_pending = False
        self._previous = None
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._previous = handler
            signal.signal(signal.SIGINT, self._postpone)

    def _postpone(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending and self._previous is not None:
            self._previous(number, frame)
        self._is_pending = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is None:
            return
        signal.signal(signal.SIGINT, self._previous)
        if self._is_pending and error is None:
            self._previous(signal.SIGINT, None)
