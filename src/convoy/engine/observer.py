"""Who looks at runs from outside: told on the borders of device calls, and nowhere else.

Whoever is not watched goes through `NULL_OBSERVER`, which hands everything back as it is: what runs
then is what would run without this file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import keras
from convoy.engine.chunk_runner import ChunkRunner, ModelRunner
from convoy.engine.data.chunks import Feed
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import Mode


class Observer(Protocol):
    """What a run is told to."""

    times_actions: bool
    """Whether pipelines are to note when each of their actions was."""

    def run(
        self, name: str, model: keras.Model, config: ExecutionConfig
    ) -> AbstractContextManager[None]:
        """Enclose a call of `fit` or one of its sisters."""
        ...

    def program(self, name: str, program: Any, varying: int | None = None) -> Any:
        """Return what is called in the place of a jitted function.

        Args:
            name: of what it computes.
            program: as `jax.jit` returns it.
            varying: the argument whose shapes may differ from call to call, if one may.
        """
        ...

    def programs(self, mode: Mode, programs: ModelRunner) -> ChunkRunner:
        """Return a wrapper of a runner that observes its device calls."""
        ...

    def feed(self, feed: Feed) -> Feed:
        """Return what hands out data in the place of a feed."""
        ...

    def callback(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return what is called in the place of a function that tells callbacks."""
        ...

    def epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        """Take note of the end of an epoch, and what callbacks were told then."""
        ...


class NullObserver:
    """Tells nobody."""

    times_actions = False

    def run(
        self, name: str, model: keras.Model, config: ExecutionConfig
    ) -> AbstractContextManager[None]:
        del name, model, config
        return nullcontext()

    def program(self, name: str, program: Any, varying: int | None = None) -> Any:
        del name, varying
        return program

    def programs(self, mode: Mode, programs: ModelRunner) -> ChunkRunner:
        del mode
        return programs

    def feed(self, feed: Feed) -> Feed:
        return feed

    def callback(self, function: Callable[..., None]) -> Callable[..., None]:
        return function

    def epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        del epoch, logs


NULL_OBSERVER = NullObserver()

Enclose = Callable[[str], AbstractContextManager[None]]

_listeners: list[Enclose] = []


@contextlib.contextmanager
def pause(name: str) -> Iterator[None]:
    """Tell whoever listens that training stands still in the block, say for a checkpoint."""
    with contextlib.ExitStack() as stack:
        for listener in _listeners:
            stack.enter_context(listener(name))
        yield


def listen(listener: Enclose) -> Callable[[], None]:
    """Have a function enclose every `pause` from now on; returns what ends that."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)
