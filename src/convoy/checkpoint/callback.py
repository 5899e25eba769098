"""The callback that writes checkpoints, and resumes an interrupted run."""

import os
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
from convoy import distributed
from convoy.arguments import whole_number
from convoy.checkpoint import optimizer_settings, snapshot
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.folder import Folder, Position
from convoy.checkpoint.optimizer_settings import Settings
from convoy.checkpoint.policy import Best, Interval, kept
from convoy.checkpoint.preemption import Preemption
from convoy.checkpoint.store import Checkpoint
from convoy.engine.checkpointer import Resumption, RunState
from convoy.engine.observer import pause
from convoy.engine.prepared_model import PreparedModel
from convoy.units import format_count


class Checkpoints(keras.callbacks.Callback):
    """Writes checkpoints of a run, and resumes it from the newest one.

    If a run is interrupted, call `fit` again with the same arguments: the result is bit-identical
    to that of an uninterrupted run, in weights, optimizer, metrics, history and order of the data.
    A line on the standard output names the checkpoint, unless `verbose=0`. A checkpoint is taken
    between two device calls and written while the next ones run.

    On SIGTERM or SIGINT, the running device call ends, a checkpoint is written, and the program
    exits with status 75. A second signal ends it at once.

    Args:
        folder: the folder of the run's checkpoints; only one run can use it at a time.
        every: interval between checkpoints: `"epoch"`, a number of steps, or a time such as
            `"10m"`. It is checked between device calls. The end of the run is always saved.
        keep: number of newest checkpoints to keep.
        best: metric by which the best checkpoint is kept too, such as `"val_accuracy"`;
            `"min:..."` or `"max:..."` if its name does not imply the direction. It is evaluated at
            the end of each epoch.
        resume: whether to resume from the folder. If `False`, the folder must be empty.
        recipe: further information to store in each checkpoint, as JSON.

    Raises:
        ValueError: if an argument is not valid.

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
        self.folder = Folder(folder)
        self.interval = Interval(every)
        self.keep = whole_number("keep", keep, "a number of checkpoints")
        self.best = None if best is None else Best.parse(best)
        self.resume = resume
        self.recipe = recipe
        self._preemption = Preemption()
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._snapshotter: snapshot.Snapshotter | None = None
        self._best: tuple[float, Position] | None = None
        self._failure: CheckpointError | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        del logs
        if not PreparedModel.of(self.model).methods:
            raise CheckpointError(
                "Checkpoints works with models that Convoy runs. Create the model in a strategy's "
                "scope, or pass it to convoy.prepare()."
            )

    def get_state(self) -> dict[str, Any]:
        return {"best": None if self._best is None else [self._best[0], *self._best[1]]}

    def set_state(self, state: dict[str, Any]) -> None:
        self._best = parse_best(state)

    def begin_run(self, run_state: RunState) -> Resumption | None:
        """Return the newest intact checkpoint, if the run resumes from one.

        Raises:
            CheckpointError: if the folder or its checkpoints cannot be used.
        """
        if distributed.is_first():
            self.folder.open_for_writing()
            self._writer = ThreadPoolExecutor(1, "convoy-checkpoint")
        run_state.feed.make_repeatable()
        settings = optimizer_settings.describe(run_state.model.optimizer)
        resumption, checkpoint = self._find(run_state)
        if resumption is not None and checkpoint is not None:
            then = checkpoint.about.get("optimizer", {})
            self._report_changes(settings, then, checkpoint)
            settings = optimizer_settings.of_resumed(settings, then)
        self._snapshotter = snapshot.Snapshotter(run_state, self.recipe, settings)
        self._best = self._failure = None
        self.interval.begin(resumption.total if resumption else 0)
        reason = run_state.feed.resume_obstacle
        if reason is not None:
            warnings.warn(
                f"A run on this input cannot be resumed exactly, since {reason}. A resumed epoch "
                "reads the input again and skips the steps that are done. For bit-identical "
                "results, pass arrays, or a keras.utils.PyDataset whose batches depend only on "
                "their index.",
                stacklevel=2,
            )
        self._preemption.begin()
        return resumption

    def _find(self, run_state: RunState) -> tuple[Resumption | None, Checkpoint | None]:
        if not self.resume:
            if self.folder.positions():
                raise CheckpointError(
                    f"{self.folder.path} has checkpoints of an earlier run, but resume=False was "
                    "passed. Pass an empty folder, or resume=True to resume that run."
                )
            return None, None
        newest = self.folder.newest() if distributed.is_first() else None
        checkpoint = snapshot.from_first_process(newest and newest[1])
        if checkpoint is None:
            return None, None
        resumption = snapshot.resumption(run_state, checkpoint)
        if newest is not None:
            self.folder.set_aside_after(newest[0])
            self._print(_describe_resumption(self.folder.at(newest[0]), resumption, run_state))
        return resumption, checkpoint

    def _report_changes(self, now: Settings, then: Settings, checkpoint: Checkpoint) -> None:
        """Report settings of the optimizer that differ from those of the resumed run."""
        if ignored := optimizer_settings.ignored(now, then, checkpoint.arrays):
            warnings.warn(
                f"The optimizer was compiled with {', '.join(ignored)}. The value of the "
                "checkpoint is used, so that the resumed run is bit-identical. Pass another folder "
                "to start a new run.",
                stacklevel=2,
            )
        if changed := optimizer_settings.changed(now, then):
            self._print(f"The optimizer's settings change from here on: {', '.join(changed)}")

    def _print(self, line: str) -> None:
        if distributed.is_first() and self.params.get("verbose") != 0:
            print(line, flush=True)

    def save_if_due(self, run_state: RunState) -> None:
        """Write a checkpoint if one is due, and exit if the run is preempted.

        Raises:
            Preempted: if the run is preempted, after the checkpoint is written.
        """
        better = self._is_better(run_state)
        signalled = self._preemption.signal is not None
        preempted, due = distributed.any_of([signalled, self.interval.due(run_state)])
        if preempted or better or run_state.finished or due:
            with pause("checkpoint"):
                self._save(run_state)
        if not (preempted or run_state.finished):
            return
        self._wait()
        if self._failure is not None:
            raise self._failure
        if preempted:
            # A progress bar ends its line only at the end of an epoch.
            has_bar = bool(run_state.step) and self.params.get("verbose") in (1, "auto")
            path = self.folder.at(Position(run_state.epoch, run_state.step))
            self._preemption.exit(path, in_line=has_bar)

    def is_preempted(self) -> bool:
        return distributed.any_of([self._preemption.signal is not None])[0]

    def end_run(self) -> None:
        self._preemption.end()
        self._wait()
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None
        self.folder.close()

    def _is_better(self, run_state: RunState) -> bool:
        if self.best is None or run_state.step:
            return False
        score = self.best.score(run_state.logs)
        if self._best is not None and score <= self._best[0]:
            return False
        self._best = score, Position(run_state.epoch, run_state.step)
        return True

    def _save(self, run_state: RunState) -> None:
        assert self._snapshotter is not None
        self._wait()
        self._failure = None
        self.interval.begin(run_state.total)
        checkpoint = self._snapshotter.take(run_state)
        position = Position(run_state.epoch, run_state.step)
        best = self._best and self._best[1]

        def write() -> None:
            self.folder.write(position, checkpoint)
            self.folder.keep_only(kept(self.folder.positions(), self.keep, best))

        if self._writer is not None:
            self._writing = self._writer.submit(write)

    def _wait(self) -> None:
        """Wait until the last checkpoint is written, and warn if that failed."""
        writing, self._writing = self._writing, None
        error = None if writing is None else writing.exception()
        if error is None:
            return
        if not isinstance(error, CheckpointError | OSError):
            raise error
        self._failure = CheckpointError(str(error))
        warnings.warn(f"{error} Training continues.", stacklevel=2)


def parse_best(state: Mapping[str, Any]) -> tuple[float, Position] | None:
    """Return score and position of the best checkpoint from the state of a `Checkpoints`.

    Raises:
        CheckpointError: if it is not what `Checkpoints.get_state` returns.
    """
    match state.get("best"):
        case None:
            return None
        case [float() | int() as score, int() as epoch, int() as step]:
            return score, Position(epoch, step)
    raise CheckpointError(
        f"The state of Checkpoints has best={state['best']!r}, which is not score, epoch and step. "
        "Pass another folder."
    )


def _describe_resumption(path: Path, resumption: Resumption | None, run_state: RunState) -> str:
    """Return a line about the checkpoint of a resumed run, and how much of the run is done."""
    if resumption is None:
        return f"Starting with the weights of {path}"
    epochs = run_state.last_epoch
    steps = f" and {format_count(resumption.step, 'step')} of the next" if resumption.step else ""
    line = f"Resumed from {path} after {resumption.epoch} of {epochs} epochs{steps}"
    if resumption.epoch > epochs:
        line = (
            f"Resumed from {path} after {resumption.epoch} epochs{steps}, more than epochs={epochs}"
        )
    if resumption.stopped and not resumption.step:
        line += ", where a callback ended the run"
        return f"{line}: nothing is left to train. Pass another folder to start a new run."
    if resumption.epoch >= epochs:
        return f"{line}: nothing is left to train. Pass more epochs, or another folder."
    return line
