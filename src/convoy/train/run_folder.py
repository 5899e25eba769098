"""The folder of a run: recipe, metrics, events, curves, checkpoints."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import keras
import yaml
from convoy.atomic_file import written_whole
from convoy.data.event_file import EventFile
from convoy.engine.observer import pause
from convoy.train.metrics_file import MetricsFile
from convoy.train.metrics_row import Record

ENDING = ".weights.h5"
RUN = "run"
"""The name of the recipe that a run leaves behind."""
_NAME = re.compile(r"epoch_(\d+(?:\.\d+)?)(?:\.weights)?\.h5")


class RunFolder:
    """What a run leaves behind. Nothing is written before `open`.

    Args:
        path: of the folder.
        checkpoints: folder of the checkpoints, if it is not inside.
    """

    def __init__(self, path: Path, checkpoints: Path | None = None) -> None:
        self.path = path
        self.checkpoints = checkpoints or path / "checkpoints"
        self.written: list[Path] = []
        """The checkpoints of this run, in its order."""
        self.failures: list[str] = []
        """What could not be written."""
        self._metrics: MetricsFile | None = None
        self._events: EventFile | None = None

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yml"

    @property
    def state(self) -> Path:
        """Where all is that a run needs to go on."""
        return self.path / "state"

    @property
    def report(self) -> Path:
        """Where the next report goes; a run that goes on leaves the earlier one as it is."""
        number = 1
        while (path := self.path / ("report" if number == 1 else f"report-{number}")).exists():
            number += 1
        return path

    @property
    def records(self) -> list[Record]:
        return [] if self._metrics is None else self._metrics.records

    def open(self, recipe: Mapping[str, Any], *, goes_on: bool = False) -> None:
        """Make the folder, and write the recipe with which the run can be repeated.

        Args:
            recipe: flags and their values.
            goes_on: whether an earlier run may have been here, with which this one goes on.

        Raises:
            ValueError: if it cannot be made or written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._open(recipe, goes_on=goes_on)
        except OSError as error:
            raise ValueError(
                f"{self.path} cannot be used for a run: {error.strerror}. Pass an --output-dir "
                "that can be written."
            ) from error

    def _open(self, recipe: Mapping[str, Any], *, goes_on: bool) -> None:
        text = yaml.safe_dump({RUN: dict(recipe)}, sort_keys=False)
        head = f"# convoy train --config-path {self.recipe} --config {RUN}\n"
        with written_whole(self.recipe) as unfinished:
            unfinished.write_text(head + text)
        self._metrics = MetricsFile(self.path / "metrics.csv", goes_on=goes_on)
        self._events = EventFile(self.path)

    def go_on(self, rows: int, checkpoints: Sequence[str]) -> None:
        """Take over what the earlier run had left where this one goes on.

        Args:
            rows: how many records.
            checkpoints: the names of its checkpoints.
        """
        if self._metrics is None or self._events is None:
            return
        self._metrics.keep(rows)
        if len(self.records) < rows:
            self._fail(f"{self._metrics.path} has lost {rows - len(self.records)} rows of {rows}")
        self.written = [
            path for path in map(self.checkpoints.joinpath, checkpoints) if path.is_file()
        ]
        self._events.restart(self.records[-1].update if self.records else 0)

    def add(self, record: Record) -> None:
        """Write a record at once, so that a run that is cut short has left it."""
        if self._metrics is None or self._events is None:
            return
        values = {
            f"{record.phase}/{name}": value
            for name, value in asdict(record).items()
            if isinstance(value, float) and name not in ("epoch", "compilation")
        }
        try:
            self._metrics.add(record)
            self._events.scalars(record.update, values)
        except OSError as error:
            self._fail(f"a record could not be written to {self.path}: {error.strerror}")

    def save(self, model: keras.Model, epoch: float, *, averaged: bool = False) -> Path | None:
        """Write a checkpoint; a file of that name is there whole or not at all.

        If it cannot be written, that is said, and training goes on.

        Args:
            model: whose weights are written.
            epoch: for the name.
            averaged: whether to write the moving averages that the optimizer keeps instead.
        """
        path = self.checkpoints / f"epoch_{round(epoch, 6)}{ENDING}"
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            with (
                pause("checkpoint"),
                averages_of(model) if averaged else contextlib.nullcontext(),
                written_whole(path) as unfinished,
            ):
                model.save_weights(unfinished, overwrite=True)
        except (OSError, RuntimeError) as error:  # the latter by h5py, when it closes a file
            self._fail(f"{path} could not be written: {' '.join(str(error).split())}")
            return None
        if path not in self.written:
            self.written.append(path)
        return path

    def _fail(self, what: str) -> None:
        self.failures.append(what)
        print(f"convoy train: {what}", file=sys.stderr)

    def remove_checkpoints(self) -> None:
        """Delete what this run has written, and the folder if nothing else is in it."""
        for path in self.written:
            path.unlink(missing_ok=True)
        if self.checkpoints.is_dir() and not any(self.checkpoints.iterdir()):
            self.checkpoints.rmdir()

    def close(self) -> Path | None:
        """Draw the curves, once; returns the picture, if matplotlib is installed."""
        if self._events is None:
            return None
        self._events.close()
        self._events = None
        return draw_curves(self.records, self.path / "curves.png") if self.records else None


@contextlib.contextmanager
def averages_of(model: keras.Model) -> Iterator[None]:
    """Have a model hold the moving averages of its weights for a while."""
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
        raise ValueError(f"{checkpoint} is not named for an epoch, as epoch_1.0{ENDING} is.")
    return float(match[1])


def find_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder by epoch.

    Raises:
        ValueError: if there is no such folder, or a name in it has no epoch.
    """
    if not folder.is_dir():
        raise ValueError(f"--checkpoint-input-dir {folder}: there is no such folder.")
    return sorted((p for p in folder.glob("*.h5") if not p.name.startswith(".")), key=epoch_of)


def draw_curves(records: Sequence[Record], picture: Path) -> Path | None:
    """Draw loss and accuracy by epoch; returns `None` where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        return None
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axis, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for phase, label in (("training", "training"), ("validation", "held out")):
            rows = [record for record in records if record.phase == phase]
            if rows:
                values = [getattr(row, name) for row in rows]
                mark = "o" if len(rows) < 20 else None
                axis.plot([row.epoch for row in rows], values, marker=mark, ms=3, label=label)
        axis.set(xlabel="epoch", ylabel=name)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(picture, dpi=120)
    return picture
