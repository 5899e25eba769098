"""Comparison of results with those of an earlier run, as a table and as a chart."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from convoy.bench.results import NAME, Result, present_values
from convoy.bench.spec import SpecError
from convoy.error_messages import system_reason
from convoy.units import format_table


class Measured(NamedTuple):
    """A metric's value and the numbers from which it was computed."""

    value: float
    samples: Sequence[float]


Measurements = Mapping[str, Mapping[str, Measured]]
"""Measured metrics by variant and name."""


def read_earlier(path: Path) -> Measurements:
    """Return the measurements of an earlier run.

    Args:
        path: folder of the run, or the JSON file in it.

    Raises:
        SpecError: if there are no results.
    """
    file = path / f"{NAME}.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text())
        return {
            entry["variant_name"]: _measured(entry["results"], entry.get("samples", {}))
            for runs in content.values()
            for entry in runs
        }
    except OSError as error:
        raise SpecError(
            f"--compare {path}: {file} cannot be read: {system_reason(error)}. Pass the folder of "
            "an earlier run."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SpecError(
            f"--compare {path}: {file} holds no results. Pass the folder of an earlier run."
        ) from None


def measurements(results: Sequence[Result]) -> Measurements:
    """Return the measurements of this run."""
    return {result.variant_name: _measured(result.results, result.samples) for result in results}


def _measured(
    values: Mapping[str, Mapping[str, float | None]], samples: Mapping[str, Sequence[float]]
) -> dict[str, Measured]:
    return {
        name: Measured(value, samples.get(name, [value]))
        for name, value in present_values(values).items()
    }


def comparison_table(now: Measurements, before: Measurements) -> list[str]:
    """Return the lines of a table with the change of every metric that both runs have.

    The spread is the smallest and the largest change between any two samples of the two runs.
    """
    rows = [("variant", "metric", "before", "now", "change", "spread", "")]
    notes = []
    for variant, metrics in now.items():
        compared = False
        for name, new in metrics.items():
            old = before.get(variant, {}).get(name)
            if old is None or not old.value or not any(old.samples):
                continue
            compared = True
            changes = [n / o - 1 for n in new.samples for o in old.samples if o]
            low, high = min(changes), max(changes)
            rows.append(
                (
                    variant,
                    name,
                    f"{old.value:.5g}",
                    f"{new.value:.5g}",
                    f"{new.value / old.value - 1:+.1%}",
                    f"{low:+.1%} to {high:+.1%}",
                    "" if low > 0 or high < 0 else "within the spread",
                )
            )
        if not compared:
            where = "the earlier run" if metrics else "this run"
            notes.append(f"{variant}: not compared, {where} has no figures of it")
    missing = sorted(set(before) - set(now))
    return [*format_table(rows), *notes, *(f"{variant}: not in this run" for variant in missing)]


def draw_chart(now: Measurements, before: Measurements, folder: Path) -> Path | None:
    """Draw `benchmark_results.png`: a panel for each metric, a bar for each variant.

    Args:
        now: measurements of this run.
        before: measurements of the run that it is compared with, drawn in grey.
        folder: folder of the file.

    Returns:
        The path of the chart; `None` without matplotlib, or without measurements.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    names = list(dict.fromkeys(name for metrics in now.values() for name in metrics))
    if not names:
        return None
    most = max(sum(name in metrics for metrics in now.values()) for name in names)
    figure = Figure(figsize=(9, 1 + len(names) * (0.6 + 0.4 * most)), layout="constrained")
    panels = figure.subplots(len(names), 1, squeeze=False)[:, 0]
    for axis, name in zip(panels, names, strict=True):
        variants = [variant for variant, metrics in now.items() if name in metrics]
        earlier = [before.get(variant, {}).get(name) for variant in variants]
        height = 0.4 if any(earlier) else 0.7
        for place, (variant, old) in enumerate(zip(variants, earlier, strict=True)):
            _bar(axis, place, height, now[variant][name], "tab:blue")
            if old:
                _bar(axis, place + height, height, old, "0.6")
        centre = height / 2 if any(earlier) else 0
        axis.set_yticks([place + centre for place in range(len(variants))], variants)
        axis.set_xlabel(f"{name} (grey: before)" if any(earlier) else name)
        axis.invert_yaxis()
        axis.grid(alpha=0.3, axis="x")
    chart = folder / f"{NAME}.png"
    figure.savefig(chart, dpi=120)
    return chart


def _bar(axis: Any, place: float, height: float, measured: Measured, colour: str) -> None:
    """Draw a value and the range of its samples."""
    value, samples = measured
    axis.barh(place, value, height, color=colour)
    axis.plot([min(samples), max(samples)], [place, place], color="black", lw=1)
    axis.text(value, place, f" {value:.5g}", va="center", fontsize=8)
