"""`register_custom_metric`, under the name that Graphcore's files import."""

from convoy.bench import register_custom_metric

__all__ = ["register_custom_metric"]
