"""Benchmark specs: running their commands and extracting metrics from the output."""

from convoy.bench.metrics import register_custom_metric

__all__ = ["register_custom_metric"]
