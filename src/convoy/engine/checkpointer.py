"""State of a run of `fit`, and the interface of the callback that saves and restores it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import keras
from convoy.engine.data.chunks import DataPosition, Feed
from convoy.engine.execution_config import ExecutionConfig
from convoy.types import Arrays, Logs


@dataclass
class RunState:
    """The state of a run between two device calls.

    Attributes:
        model: the model that is trained.
        config: the configuration of the run.
        feed: data of the run.
        callbacks: the callbacks that were passed to `fit`, and Keras's own.
        epoch: the epoch that is running, or comes next.
        last_epoch: the number of epochs after which the run ends.
        step: steps of the epoch that are done; 0 between epochs.
        total: steps that are done in all epochs.
        logs: the last logs that callbacks received.
        metrics: the values of the metrics' variables, while validation uses these variables.
    """

    model: keras.Model
    config: ExecutionConfig
    feed: Feed
    callbacks: list[keras.callbacks.Callback]
    epoch: int
    last_epoch: int
    step: int = 0
    total: int = 0
    logs: Logs = field(default_factory=dict)
    metrics: Arrays | None = None

    @property
    def finished(self) -> bool:
        over = self.epoch >= self.last_epoch or self.model.stop_training
        return self.step == 0 and over

    @property
    def position(self) -> DataPosition:
        return self.feed.position(epoch_over=self.step == 0)


@dataclass(frozen=True)
class Resumption:
    """The point at which a run resumes.

    Attributes:
        epoch: the first epoch to run.
        step: steps of that epoch that are done.
        total: steps that are done in all epochs.
        logs: the last logs that callbacks received.
        stopped: whether a callback had stopped the training.
        position: the position in the data.
        restore: function that restores all values; called as the last step of starting the run.
    """

    epoch: int
    step: int
    total: int
    logs: Logs
    stopped: bool
    position: DataPosition
    restore: Callable[[], None]


@runtime_checkable
class Checkpointer(Protocol):
    """A callback that saves a run between device calls."""

    def begin_run(self, run_state: RunState) -> Resumption | None:
        """Return the point at which the run resumes, or `None` to start from the beginning."""
        ...

    def save_if_due(self, run_state: RunState) -> None:
        """Save a checkpoint if one is due; called between device calls, after all callbacks."""
        ...

    def is_preempted(self) -> bool:
        """Return whether validation has to end early, so that `save_if_due` is called."""
        ...

    def end_run(self) -> None:
        """Release all resources, also if the run has failed."""
        ...


def find_checkpointer(callbacks: Iterable[object]) -> Checkpointer | None:
    """Return the checkpointer among a run's callbacks.

    Raises:
        ValueError: if there are two.
    """
    found = [callback for callback in callbacks if isinstance(callback, Checkpointer)]
    if len(found) > 1:
        raise ValueError(f"fit() received {len(found)} Checkpoints callbacks. Pass one.")
    return found[0] if found else None


def resume(run_state: RunState, checkpointer: Checkpointer) -> Resumption | None:
    """Restore the state of an earlier run, if there is one to resume.

    Values are restored now if the run resumes between two epochs; otherwise when the epoch begins.
    """
    resumption = checkpointer.begin_run(run_state)
    if resumption is None:
        return None
    run_state.epoch, run_state.step = resumption.epoch, resumption.step
    run_state.total, run_state.logs = resumption.total, resumption.logs
    if not resumption.step:
        resumption.restore()
    run_state.model.stop_training = resumption.stopped
    return resumption
