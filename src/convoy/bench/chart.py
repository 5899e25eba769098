"""A picture of the results: a panel for each metric, a bar for each variant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convoy.bench.compare import Earlier
from convoy.bench.results import NAME, Outcome


def draw_chart(outcomes: Sequence[Outcome], earlier: Earlier, folder: Path) -> Path | None:
    """Draw `benchmark_results.png`; returns `None` without matplotlib, or without a figure.

    Args:
        outcomes: of this run.
        earlier: of the one it is compared with, drawn in grey.
        folder: where to.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    metrics = list(dict.fromkeys(name for outcome in outcomes for name in outcome.samples))
    if not metrics:
        return None
    most = max(sum(name in outcome.samples for outcome in outcomes) for name in metrics)
    size = (9, 1 + len(metrics) * (0.6 + 0.4 * most))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(metrics), 1, squeeze=False)[:, 0]
    for axis, metric in zip(panels, metrics, strict=True):
        rows = [outcome for outcome in outcomes if outcome.value(metric) is not None]
        both = any(earlier.get(row.variant, {}).get(metric) for row in rows)
        height = 0.4 if both else 0.7
        for place, row in enumerate(rows):
            _bar(axis, place, height, [row.value(metric), *row.samples[metric]], "tab:blue")
            before = earlier.get(row.variant, {}).get(metric)
            if before:
                _bar(axis, place + height, height, before, "0.6")
        names = [row.variant for row in rows]
        axis.set_yticks([place + (height / 2 if both else 0) for place in range(len(rows))], names)
        axis.set_xlabel(f"{metric} (grey: before)" if both else metric)
        axis.invert_yaxis()
        axis.grid(alpha=0.3, axis="x")
    picture = folder / f"{NAME}.png"
    figure.savefig(picture, dpi=120)
    return picture


def _bar(axis: Any, place: float, height: float, numbers: Sequence, colour: str) -> None:
    """Draw a value, and how far the numbers behind it reach."""
    value, *samples = numbers
    axis.barh(place, value, height, color=colour)
    axis.plot([min(samples), max(samples)], [place, place], color="black", lw=1)
    axis.text(value, place, f" {value:.5g}", va="center", fontsize=8)
