"""Plots of a run: loss curves, and predictions against true values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

TITLES = (r"$\Omega_m$", r"$\sigma_8$", r"$n_s$", r"$H_0$")


def draw_curves(history: Sequence[Mapping[str, float]], path: Path) -> Path | None:
    """Draw loss and MAE by epoch.

    Args:
        history: values of each epoch.
        path: path of the PNG file.

    Returns:
        The path; `None` if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axis, name in zip(figure.subplots(1, 2), ("loss", "mae"), strict=True):
        for column, label in ((name, "training"), (f"val_{name}", "validation")):
            rows = [row for row in history if column in row]
            if rows:
                mark = "o" if len(rows) < 20 else None
                values = [row[column] for row in rows]
                axis.plot([row["epoch"] for row in rows], values, marker=mark, ms=3, label=label)
        axis.set(xlabel="epoch", ylabel={"mae": "mean absolute error"}.get(name, name))
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend()
    figure.savefig(path, dpi=120)
    return path


def draw_predictions(true: np.ndarray, predicted: np.ndarray, path: Path) -> Path | None:
    """Draw predictions against true values, with a panel for each target.

    Args:
        true: true targets, a row for each sample.
        predicted: predicted targets.
        path: path of the PNG file.

    Returns:
        The path; `None` if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    targets = true.shape[1]
    titles = TITLES if targets == len(TITLES) else [f"target {n + 1}" for n in range(targets)]
    figure = Figure(figsize=(3 * targets, 3.2), layout="constrained")
    axes = figure.subplots(1, targets, squeeze=False)[0]
    for axis, title, x, y in zip(axes, titles, true.T, predicted.T, strict=True):
        ends = min(x.min(), y.min()), max(x.max(), y.max())
        axis.plot(ends, ends, color="0.6", lw=1)
        axis.scatter(x, y, s=6, alpha=0.5)
        axis.set(
            xlabel="true",
            ylabel="predicted" if axis is axes[0] else "",
            title=f"{title}: error {np.abs(y - x).mean():.3f}",
            aspect="equal",
        )
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    return path


def mean_error(true: np.ndarray) -> float:
    """Return the mean absolute error of always predicting the mean of the targets."""
    return float(np.abs(true - true.mean(axis=0)).mean())
