"""The callback that writes checkpoints, and has an interrupted run go on."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
from convoy import distributed
from convoy.checkpoint import optimizer_settings, snapshot
from convoy.checkpoint.background import Background
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.folder import Folder, Position
from convoy.checkpoint.optimizer_settings import Settings
from convoy.checkpoint.policy import Best, Every, kept
from convoy.checkpoint.preemption import EXIT_STATUS, Leaving, Left
from convoy.checkpoint.store import Content
from convoy.engine.checkpointer import Progress, Resumption
from convoy.engine.observer import pause


class Checkpoints(keras.callbacks.Callback):
    """Writes checkpoints of a run, and goes on from the newest one.

    Call `fit` again with the same arguments after a run was killed, and it ends with the same bits
    as if it had not been: weights, optimizer, metrics, history, order of the data. A line says from
    where it goes on, unless `verbose=0`. A checkpoint is taken between two device calls and written
    while the next ones run.

    On SIGTERM or SIGINT the running device call is finished, a checkpoint is written, and the
    program ends with exit status 75. A second signal ends it at once.

    Args:
        folder: where checkpoints are; each is a folder in it. One run writes there at a time.
        every: how often: `"epoch"`, a number of steps, or a time such as `"10m"`. It is looked at
            between device calls. The end of the run is always written.
        keep: how many of the newest ones are kept.
        best: the metric by which one more is kept, such as `"val_accuracy"`; `"min:..."` or
            `"max:..."` if its name does not tell what is better. Asked for at the end of epochs.
        resume: whether to go on from what is in the folder. If not, it must be empty.
        recipe: what else to note in every checkpoint, as JSON can hold it.

    Raises:
        ValueError: if an argument is none of these.

    Example:
    ```python
    model.fit(x, y, epochs=90, callbacks=[convoy.Checkpoints("run1", every="10m")])
    ```
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int | str = "epoch",
        keep: int = 3,
        best: str | None = None,
        *,
        resume: bool = True,
        recipe: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep={keep!r} is not a number of checkpoints. Pass 1 or more.")
        self.folder = Folder(folder)
        self.every = Every(every)
        self.keep = keep
        self.best = None if best is None else Best.parse(best)
        self.resume = resume
        self.recipe = recipe
        self._leaving = Leaving()
        self._background = Background()
        self._snapshots: snapshot.Snapshots | None = None
        self._best: tuple[float, Position] | None = None
        self._failure: CheckpointError | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        del logs
        if "fit" not in vars(self.model):
            raise CheckpointError(
                "Checkpoints works with models that Convoy runs. Make the model in a strategy's "
                "scope, or pass it to convoy.prepare()."
            )

    def get_state(self) -> dict[str, Any]:
        return {"best": None if self._best is None else [self._best[0], *self._best[1]]}

    def set_state(self, state: dict[str, Any]) -> None:
        if state["best"] is not None:
            value, epoch, step = state["best"]
            self._best = value, Position(epoch, step)

    def begin_run(self, progress: Progress) -> Resumption | None:
        """Find the newest checkpoint that is whole, and return it if the run is to go on there.

        Raises:
            CheckpointError: if the folder cannot be used, or what is in it.
        """
        if distributed.is_first():
            self.folder.open_for_writing()
        progress.feed.make_repeatable()
        settings = optimizer_settings.describe(progress.model.optimizer)
        found, content = self._find(progress)
        if found is not None and content is not None:
            then = content.about.get("optimizer", {})
            self._say_what_differs(settings, then, content)
            settings = optimizer_settings.of_resumed(settings, then)
        self._snapshots = snapshot.Snapshots(progress, self.recipe, settings)
        self._best = self._failure = None
        self.every.begin(found.total if found else 0)
        reason = progress.feed.why_not_resumable
        if reason is not None:
            warnings.warn(
                f"A run on this input cannot be resumed exactly, since {reason}. A resumed epoch "
                "reads it again and drops what was done. For the same bits pass arrays, or a "
                "keras.utils.PyDataset whose batches follow from their index.",
                stacklevel=2,
            )
        self._leaving.begin()
        return found

    def _find(self, progress: Progress) -> tuple[Resumption | None, Content | None]:
        if not self.resume:
            if self.folder.positions():
                raise CheckpointError(
                    f"{self.folder.path} has checkpoints of an earlier run, but resume=False was "
                    "passed. Pass an empty folder, or resume=True to go on with that run."
                )
            return None, None
        newest = self.folder.newest() if distributed.is_first() else None
        content = snapshot.of_first(newest and newest[1])
        if content is None:
            return None, None
        found = snapshot.resumption(progress, content)
        if newest is not None:
            self.folder.set_aside_after(newest[0])
            self._say(_where_it_goes_on(self.folder.at(newest[0]), found, progress))
        return found, content

    def _say_what_differs(self, now: Settings, then: Settings, content: Content) -> None:
        """Tell of settings of the optimizer that are not those of the run that goes on."""
        if dropped := optimizer_settings.dropped(now, then, content.arrays):
            warnings.warn(
                f"The optimizer was compiled with {', '.join(dropped)}. The checkpoint's value "
                "counts, so that the run goes on bit for bit. Pass another folder to begin anew.",
                stacklevel=2,
            )
        if changed := optimizer_settings.changed(now, then):
            self._say(f"The optimizer's settings are other ones from here on: {', '.join(changed)}")

    def _say(self, line: str) -> None:
        if distributed.is_first() and self.params.get("verbose") != 0:
            print(line, flush=True)

    def record(self, progress: Progress) -> None:
        """Write a checkpoint if one is due, and leave if that was asked for.

        Raises:
            Left: in that case, when the checkpoint is written.
        """
        better = self._is_better(progress)
        leaving, due = distributed.any_of([bool(self._leaving.asked), self.every.due(progress)])
        if leaving or better or progress.finished or due:
            with pause("checkpoint"):
                self._save(progress)
        if not (leaving or progress.finished):
            return
        self._wait()
        if self._failure is not None:
            raise self._failure
        if leaving:
            distributed.wait_for_all("the checkpoint is written")
            raise Left(self._say_leaving(progress))

    def _say_leaving(self, progress: Progress) -> str:
        where = self.folder.at(Position(progress.epoch, progress.step))
        signal = self._leaving.asked
        reason = signal.name if signal else "a signal to another process"
        message = f"Left on {reason}, exit status {EXIT_STATUS}; checkpoint to resume from: {where}"
        if distributed.is_first():
            # A progress bar does not end its line before the epoch is over.
            in_line = progress.step and self.params.get("verbose") in (1, "auto")
            print(f"\n{message}" if in_line else message, flush=True)
        return message

    def wants_to_leave(self) -> bool:
        return distributed.any_of([self._leaving.asked is not None])[0]

    def end_run(self) -> None:
        self._leaving.end()
        self._wait()
        self.folder.close()

    def _is_better(self, progress: Progress) -> bool:
        if self.best is None or progress.step:
            return False
        value = self.best.value(progress.logs)
        if self._best is not None and value <= self._best[0]:
            return False
        self._best = value, Position(progress.epoch, progress.step)
        return True

    def _save(self, progress: Progress) -> None:
        assert self._snapshots is not None
        self._wait()
        self._failure = None
        self.every.begin(progress.total)
        content = self._snapshots.take(progress)
        position = Position(progress.epoch, progress.step)
        best = self._best and self._best[1]

        def write() -> None:
            self.folder.write(position, content)
            self.folder.keep_only(kept(self.folder.positions(), self.keep, best))

        if distributed.is_first():
            self._background.start(write)

    def _wait(self) -> None:
        """Wait until the last checkpoint is written, and say so if it could not be."""
        error = self._background.wait()
        if error is None:
            return
        if not isinstance(error, CheckpointError | OSError):
            raise error
        self._failure = CheckpointError(str(error))
        warnings.warn(f"{error} Training goes on.", stacklevel=2)


def _where_it_goes_on(path: Path, found: Resumption | None, progress: Progress) -> str:
    """Say from which checkpoint a run goes on, and how much of it is done."""
    if found is None:
        return f"Begins with the weights of {path}"
    epochs = progress.last_epoch
    counted = "1 step" if found.step == 1 else f"{found.step} steps"
    steps = f" and {counted} of the next" if found.step else ""
    said = f"Resumed from {path} after {found.epoch} of {epochs} epochs{steps}"
    if found.epoch > epochs:
        said = f"Resumed from {path} after {found.epoch} epochs{steps}, more than epochs={epochs}"
    if found.stopped and not found.step:
        said += ", where a callback ended the run"
        return f"{said}: nothing is left to train. Pass another folder to begin anew."
    if found.epoch >= epochs:
        return f"{said}: nothing is left to train. Pass more epochs, or another folder."
    return said
