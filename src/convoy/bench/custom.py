"""Metrics of a user's own, from Python files that register them."""

from __future__ import annotations

import runpy
from pathlib import Path

from convoy.bench.metrics import custom_metrics, register_custom_metric
from convoy.bench.spec import SpecError

__all__ = ["custom_metrics", "load", "register_custom_metric"]


def load(file: Path) -> None:
    """Run a file that calls `register_custom_metric`.

    Raises:
        SpecError: if it cannot be run, or registers nothing.
    """
    before = dict(custom_metrics())
    try:
        runpy.run_path(str(file))
    except Exception as error:  # whatever a user's file does
        reason = " ".join(str(error).split())
        raise SpecError(
            f"--custom-metrics-files {file}: {type(error).__name__}: {reason}"
        ) from None
    if dict(custom_metrics()) == before:
        raise SpecError(
            f"--custom-metrics-files {file}: it registers no metric. Call register_custom_metric "
            "in it."
        )
