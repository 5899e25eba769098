"""How far a run of `fit` has come, and who may write that down and bring it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import keras
from convoy.engine.data.chunks import Feed, Place
from convoy.engine.execution_config import ExecutionConfig


@dataclass
class Progress:
    """A run between two device calls.

    Attributes:
        model: what is trained.
        config: how.
        feed: its data.
        callbacks: all that were passed to `fit`, and Keras's own.
        epoch: the epoch that is running, or comes next.
        last_epoch: the one after which the run ends.
        step: steps of the epoch that are done; 0 between epochs.
        total: steps that are done in all epochs.
        logs: the last ones that callbacks were told.
        metrics: the state of the metrics, while validation uses their variables.
    """

    model: keras.Model
    config: ExecutionConfig
    feed: Feed
    callbacks: list[keras.callbacks.Callback]
    epoch: int
    last_epoch: int
    step: int = 0
    total: int = 0
    logs: dict[str, Any] = field(default_factory=dict)
    metrics: list[jax.Array] | None = None

    def end_epoch(self, logs: dict[str, Any]) -> None:
        self.epoch, self.step, self.logs = self.epoch + 1, 0, logs

    @property
    def finished(self) -> bool:
        over = self.epoch >= self.last_epoch or self.model.stop_training
        return self.step == 0 and over

    @property
    def place(self) -> Place:
        return self.feed.place(epoch_over=self.step == 0)


@dataclass(frozen=True)
class Resumption:
    """Where a run goes on.

    Attributes:
        epoch: the first epoch to run.
        step: steps of it that are done.
        total: steps that are done in all epochs.
        logs: the last ones that callbacks were told.
        stopped: whether a callback had asked to stop.
        place: where in its data the feed goes on.
        restore: puts all values back; to be called after everything that the run begins with.
    """

    epoch: int
    step: int
    total: int
    logs: dict[str, Any]
    stopped: bool
    place: Place
    restore: Callable[[], None]


@runtime_checkable
class Recorder(Protocol):
    """A callback that writes a run down between device calls."""

    def begin_run(self, progress: Progress) -> Resumption | None:
        """Return where the run goes on, if it does not start from the beginning."""
        ...

    def record(self, progress: Progress) -> None:
        """Look at the run after a device call, or between epochs, when all callbacks have."""
        ...

    def wants_to_leave(self) -> bool:
        """Return whether validation is to end early, for `record` to be called."""
        ...

    def end_run(self) -> None:
        """Let go of everything, whether or not the run has come to its end."""
        ...


class NoRecorder:
    """Records nothing."""

    def begin_run(self, progress: Progress) -> Resumption | None:
        del progress
        return None

    def record(self, progress: Progress) -> None:
        pass

    def wants_to_leave(self) -> bool:
        return False

    def end_run(self) -> None:
        pass


def recorder_among(callbacks: Iterable[object]) -> Recorder:
    """Return the recorder among a run's callbacks.

    Raises:
        ValueError: if there are two.
    """
    found = [callback for callback in callbacks if isinstance(callback, Recorder)]
    if len(found) > 1:
        raise ValueError(f"fit() received {len(found)} Checkpoints callbacks. Pass one.")
    return found[0] if found else NoRecorder()
