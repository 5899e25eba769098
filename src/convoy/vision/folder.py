"""The folder of a run: recipe, metrics, events, curves, checkpoints."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import keras
import yaml
from convoy.vision.event_file import EventFile
from convoy.vision.record import Record

ENDING = ".weights.h5"
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
        self.records: list[Record] = []
        self.written: list[Path] = []
        """The checkpoints of this run, in its order."""
        self._events: EventFile | None = None

    def open(self, recipe: Mapping[str, Any]) -> None:
        """Make the folder, and write the recipe with which the run can be repeated."""
        self.path.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump({"run": dict(recipe)}, sort_keys=False)
        head = f"# convoy train --config-path {self.path / 'recipe.yml'} --config run\n"
        (self.path / "recipe.yml").write_text(head + text)
        with self._metrics.open("w", newline="") as file:
            csv.writer(file).writerow([field.name for field in fields(Record)])
        self._events = EventFile(self.path)

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.csv"

    def add(self, record: Record) -> None:
        """Write a record at once, so that a run that is cut short has left it."""
        self.records.append(record)
        with self._metrics.open("a", newline="") as file:
            csv.writer(file).writerow(asdict(record).values())
        values = {
            name: value
            for name, value in asdict(record).items()
            if isinstance(value, float) and name not in ("epoch", "compilation")
        }
        if self._events is not None:
            self._events.scalars(
                record.update, {f"{record.phase}/{name}": value for name, value in values.items()}
            )

    def save(self, model: keras.Model, epoch: float) -> Path:
        """Write a checkpoint; a file of that name is there whole or not at all."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        path = self.checkpoints / f"epoch_{round(epoch, 6)}{ENDING}"
        unfinished = path.with_name(f".unfinished{ENDING}")
        model.save_weights(unfinished, overwrite=True)
        os.replace(unfinished, path)
        self.written.append(path)
        return path

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
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(picture, dpi=120)
    return picture
