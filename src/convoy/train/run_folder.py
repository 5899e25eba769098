"""The folder of a run: recipe, metrics, TensorBoard events, curves and checkpoints."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import keras
import yaml
from convoy.atomic_file import atomic_write
from convoy.data.event_file import EventFile
from convoy.engine.observer import pause
from convoy.error_messages import system_reason
from convoy.train.messages import notify
from convoy.train.metrics import MetricsFile, MetricsRow
from convoy_command.parser import one_line

ENDING = ".weights.h5"
RUN = "run"
"""Name of the recipe in a run's folder."""
_NAME = re.compile(r"epoch_(\d+(?:\.\d+)?)(?:\.weights)?\.h5")


class RunFolder:
    """The files of a run. Nothing is written before `open`.

    Args:
        path: path of the folder.
        checkpoints: folder of the checkpoints; by default inside of `path`.
    """

    def __init__(self, path: Path, checkpoints: Path | None = None) -> None:
        self.path = path
        self.checkpoints = checkpoints or path / "checkpoints"
        self.written: list[Path] = []
        """Checkpoints of this run, oldest first."""
        self.failures: list[str] = []
        """Messages about files that could not be written."""
        self._metrics: MetricsFile
        self._events: EventFile
        self._is_open = False

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yml"

    @property
    def state(self) -> Path:
        """Folder of the state from which a run resumes."""
        return self.path / "state"

    @property
    def report(self) -> Path:
        """Folder of the next report; a resumed run does not overwrite the earlier one."""
        number = 1
        while (path := self.path / ("report" if number == 1 else f"report-{number}")).exists():
            number += 1
        return path

    @property
    def rows(self) -> list[MetricsRow]:
        return self._metrics.rows

    def open(self, recipe: Mapping[str, Any], *, resumes: bool = False) -> None:
        """Create the folder, and write the recipe that repeats the run.

        Args:
            recipe: flags and their values.
            resumes: whether to continue the files of an earlier run.

        Raises:
            ValueError: if the folder cannot be created or written to.
        """
        text = yaml.safe_dump({RUN: dict(recipe)}, sort_keys=False)
        head = f"# convoy train --config-path {self.recipe} --config {RUN}\n"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.recipe) as unfinished:
                unfinished.write_text(head + text)
            self._metrics = MetricsFile(self.path / "metrics.csv", resumes=resumes)
            self._events = EventFile(self.path)
        except OSError as error:
            raise ValueError(
                f"{self.path} cannot be used for a run: {system_reason(error)}. Pass an "
                "--output-dir that can be written."
            ) from error
        self._is_open = True

    def restore(self, rows: int, checkpoints: Sequence[str]) -> None:
        """Restore the files to their state at the point from which a run resumes.

        Args:
            rows: number of metrics rows.
            checkpoints: names of the checkpoints.
        """
        self._metrics.keep(rows)
        if len(self.rows) < rows:
            self._fail(f"{self._metrics.path} has lost {rows - len(self.rows)} rows of {rows}")
        self.written = [
            path for path in map(self.checkpoints.joinpath, checkpoints) if path.is_file()
        ]
        self._events.restart(self.rows[-1].update if self.rows else 0)

    def add(self, row: MetricsRow) -> None:
        """Write a row of metrics to disk at once, so that it survives if the process is killed."""
        values = {
            name: value
            for name, value in row.scalars.items()
            if not name.endswith(("/epoch", "/compilation"))
        }
        try:
            self._metrics.add(row)
            self._events.scalars(row.update, values)
        except OSError as error:
            self._fail(f"metrics could not be written to {self.path}: {system_reason(error)}")

    def save(self, model: keras.Model, epoch: float, *, averaged: bool = False) -> Path | None:
        """Write a checkpoint atomically.

        If it cannot be written, a message is printed and training continues.

        Args:
            model: the model whose weights are written.
            epoch: epoch in the file's name.
            averaged: whether to write the optimizer's moving averages instead of the weights.
        """
        path = self.checkpoints / f"epoch_{round(epoch, 6)}{ENDING}"
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            with (
                pause("checkpoint"),
                averages_of(model) if averaged else contextlib.nullcontext(),
                atomic_write(path) as unfinished,
            ):
                model.save_weights(unfinished, overwrite=True)
        except (OSError, RuntimeError) as error:  # the latter by h5py, when it closes a file
            self._fail(f"{path} could not be written: {one_line(error)}")
            return None
        if path not in self.written:
            self.written.append(path)
        return path

    def _fail(self, message: str) -> None:
        self.failures.append(message)
        notify(message)

    def remove_checkpoints(self) -> None:
        """Delete the checkpoints of this run, and their folder if it is empty then."""
        for path in self.written:
            path.unlink(missing_ok=True)
        if self.checkpoints.is_dir() and not any(self.checkpoints.iterdir()):
            self.checkpoints.rmdir()

    def close(self) -> Path | None:
        """Close the files and plot the curves; return the plot, if matplotlib is installed."""
        if not self._is_open:
            return None
        self._is_open = False
        self._events.close()
        return plot_curves(self.rows, self.path / "curves.png") if self.rows else None


@contextlib.contextmanager
def averages_of(model: keras.Model) -> Iterator[None]:
    """Replace the weights of a model by their moving averages within a `with` block."""
    kept = [(variable, variable.value) for variable in model.trainable_variables]
    model.optimizer.finalize_variable_values(model.trainable_variables)
    try:
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)


def default_folder(model: str, dataset: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9_]+", "-", model)
    return Path("runs") / f"{name}-{dataset}-{datetime.now():%Y%m%d-%H%M%S}"


def epoch_of(checkpoint: Path) -> float:
    """Return the epoch in a checkpoint's name.

    Raises:
        ValueError: if the name has none.
    """
    match = _NAME.fullmatch(checkpoint.name)
    if match is None:
        raise ValueError(
            f"{checkpoint} does not have its epoch in its name. Rename it, for example to "
            f"epoch_1.0{ENDING}."
        )
    return float(match[1])


def find_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, ordered by epoch.

    Raises:
        ValueError: if there is no such folder, or a name in it has no epoch.
    """
    if not folder.is_dir():
        raise ValueError(
            f"--checkpoint-input-dir {folder}: there is no such folder. Pass its path."
        )
    return sorted((p for p in folder.glob("*.h5") if not p.name.startswith(".")), key=epoch_of)


def plot_curves(metrics: Sequence[MetricsRow], path: Path) -> Path | None:
    """Plot loss and accuracy over epochs; return `None` if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        return None
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axis, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for phase, label in (("training", "training"), ("validation", "held out")):
            rows = [row for row in metrics if row.phase == phase]
            if rows:
                values = [getattr(row, name) for row in rows]
                marker = "o" if len(rows) < 20 else None
                axis.plot([row.epoch for row in rows], values, marker=marker, ms=3, label=label)
        axis.set(xlabel="epoch", ylabel=name)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=120)
    return path
