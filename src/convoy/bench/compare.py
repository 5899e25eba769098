"""Results beside those of an earlier run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convoy.bench.results import NAME, Outcome
from convoy.bench.spec import SpecError

Earlier = Mapping[str, Mapping[str, Sequence[float]]]
"""Of each variant and metric: its value, and the numbers behind it."""


@dataclass(frozen=True)
class Change:
    """A metric of a variant, before and now.

    Attributes:
        variant: whose.
        metric: its name.
        old: the earlier value.
        new: the value now.
        low: the smallest change that the numbers behind the values allow, as a share.
        high: the largest.
    """

    variant: str
    metric: str
    old: float
    new: float
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.new / self.old - 1 if self.old else float("nan")

    @property
    def is_clear(self) -> bool:
        """Whether the change is larger than the spread of both runs."""
        return self.low > 0 or self.high < 0


def read_earlier(path: Path) -> Earlier:
    """Read the results of an earlier run: its folder, or the JSON file in it.

    Raises:
        SpecError: if there are none.
    """
    file = path / f"{NAME}.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text())
        return {
            entry["variant_name"]: _samples(entry) for runs in content.values() for entry in runs
        }
    except OSError as error:
        raise SpecError(f"--compare {path}: {error.strerror}: {file}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SpecError(
            f"--compare {path}: {file} does not hold results. Pass the folder of an earlier run."
        ) from None


def compare(outcomes: Sequence[Outcome], earlier: Earlier) -> list[Change]:
    """Return the change in every metric that both runs have."""
    changes = []
    for outcome in outcomes:
        for metric, samples in outcome.samples.items():
            value = outcome.value(metric)
            before = earlier.get(outcome.variant, {}).get(metric)
            if value is None or not before:
                continue
            old, *behind = before
            ratios = [new / past - 1 for new in samples for past in behind if past]
            if old and ratios:
                low, high = min(ratios), max(ratios)
                changes.append(Change(outcome.variant, metric, old, value, low, high))
    return changes


def describe(changes: Sequence[Change], outcomes: Sequence[Outcome], earlier: Earlier) -> list[str]:
    """Return a table, and what could not be compared."""
    rows = [("variant", "metric", "before", "now", "change", "spread", "")]
    for change in changes:
        verdict = "" if change.is_clear else "within the spread"
        rows.append(
            (
                change.variant,
                change.metric,
                f"{change.old:.5g}",
                f"{change.new:.5g}",
                f"{change.share:+.1%}",
                f"{change.low:+.1%} to {change.high:+.1%}",
                verdict,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    compared = {change.variant for change in changes}
    for outcome in outcomes:
        if outcome.variant not in compared:
            where = "the earlier run" if outcome.passed else "this run"
            lines.append(f"{outcome.variant}: not compared, {where} has no figures of it")
    absent = set(earlier) - {outcome.variant for outcome in outcomes}
    lines += [f"{variant}: not in this run" for variant in sorted(absent)]
    return lines


def _samples(entry: Mapping[str, Any]) -> dict[str, list[float]]:
    found = {}
    for metric, by in entry["results"].items():
        value = next(iter(by.values()), None)
        if value is not None:
            found[metric] = [value, *entry.get("samples", {}).get(metric, [value])]
    return found
