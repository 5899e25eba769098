"""Where files of custom metrics look for `register_custom_metric`."""

from convoy.bench.custom import register_custom_metric

__all__ = ["register_custom_metric"]
