"""Folder of a run: settings, history, plots and weights. Only the first process writes."""

from __future__ import annotations

import csv
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import yaml
from convoy import distributed

from cosmoflow.plots import draw_curves, draw_predictions


class RunFolder:
    """Files of a run.

    Args:
        path: path of the folder, which is created.
        tree: settings as in a YAML file.
    """

    def __init__(self, path: Path, tree: Mapping[str, Any]) -> None:
        self.path = path
        self.history: list[dict[str, float]] = []
        self.writes = distributed.is_first()
        if self.writes:
            path.mkdir(parents=True, exist_ok=True)
            (path / "config.pkl").write_bytes(pickle.dumps(dict(tree)))
            (path / "config.yaml").write_text(dump(tree))

    def add(self, row: Mapping[str, float]) -> None:
        """Write the values of an epoch at once, so that an interrupted run keeps them."""
        self.history.append(dict(row))
        if not self.writes:
            return
        names = list(dict.fromkeys(name for row in self.history for name in row))
        with (self.path / "history.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, names)
            table.writeheader()
            table.writerows(self.history)

    def write_lines(self, name: str, lines: Iterable[str]) -> None:
        if self.writes:
            (self.path / name).write_text("".join(f"{line}\n" for line in lines))

    def save_weights(self, model: keras.Model) -> None:
        if self.writes:
            model.save_weights(self.path / "model.weights.h5", overwrite=True)

    def draw_curves(self) -> Path | None:
        if not self.writes or not self.history:
            return None
        return draw_curves(self.history, self.path / "curves.png")

    def draw_predictions(self, true: np.ndarray, predicted: np.ndarray) -> Path | None:
        if not self.writes:
            return None
        return draw_predictions(true, predicted, self.path / "predicted.png")


def dump(tree: Mapping[str, Any]) -> str:
    """Return settings as YAML."""
    return yaml.safe_dump(dict(tree), sort_keys=False, default_flow_style=None)
