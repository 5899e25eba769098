"""The interface through which runs are observed, before and after device calls only.

The default observer returns everything unchanged, so an unobserved run has no overhead.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TypeVar

import jax
import keras
from convoy.engine.chunk_runner import ChunkRunner, ModelRunner, Outcome
from convoy.engine.data.chunks import Feed
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import Mode
from convoy.types import Logs

Program = TypeVar("Program", bound=jax.stages.Wrapped)
"""A function as `jax.jit` returns it."""


class EpochCallbacks(NamedTuple):
    """Functions that call a run's callbacks between device calls.

    Attributes:
        begin: function of the number of the first step.
        end: function of the number of the last step, and the outcome of every device call; it
            returns whether the run stops.
    """

    begin: Callable[[int], None]
    end: Callable[[int, list[Outcome]], bool]


class Observer:
    """An observer of the runs of a strategy's models; this one observes nothing."""

    times_actions = False
    """Whether pipelines measure when each of their actions runs."""

    def run(
        self, name: str, model: keras.Model, config: ExecutionConfig
    ) -> AbstractContextManager[None]:
        """Return a context that encloses a call of `fit`, `evaluate` or the like."""
        del name, model, config
        return nullcontext()

    def program(self, name: str, program: Program, varying: int | None = None) -> Program:
        """Return a wrapper of a compiled program.

        Args:
            name: name of the computation.
            program: the program.
            varying: the argument whose shapes may differ from call to call, if there is one.
        """
        del name, varying
        return program

    def runner(self, mode: Mode, runner: ModelRunner) -> ChunkRunner:
        """Return a wrapper of a runner, for one device call."""
        del mode
        return runner

    def epoch(
        self, mode: Mode, runner: ModelRunner, feed: Feed, callbacks: EpochCallbacks
    ) -> tuple[ChunkRunner, Feed, EpochCallbacks]:
        """Return wrappers of the runner, the feed and the callbacks of an epoch."""
        del mode
        return runner, feed, callbacks

    def end_epoch(self, on_epoch_end: Callable[[int, Logs], None], epoch: int, logs: Logs) -> None:
        """Call the callbacks at the end of an epoch, and observe what they receive."""
        on_epoch_end(epoch, logs)


NULL_OBSERVER = Observer()

_default: Observer = NULL_OBSERVER


def default_observer() -> Observer:
    """Return the observer of new strategies."""
    return _default


@contextlib.contextmanager
def observed_by_default(observer: Observer) -> Iterator[None]:
    """Make an observer the default of every strategy that is created in the block."""
    global _default
    before, _default = _default, observer
    try:
        yield
    finally:
        _default = before


PauseContext = Callable[[str], AbstractContextManager[None]]

_pause_contexts: list[PauseContext] = []


@contextlib.contextmanager
def pause(name: str) -> Iterator[None]:
    """Mark a block in which training is paused, for example to save a checkpoint."""
    with contextlib.ExitStack() as stack:
        for context in _pause_contexts:
            stack.enter_context(context(name))
        yield


def observe_pauses(context: PauseContext) -> Callable[[], None]:
    """Enter a context around every later `pause`; return a function that ends the observation."""
    _pause_contexts.append(context)
    return lambda: _pause_contexts.remove(context)
