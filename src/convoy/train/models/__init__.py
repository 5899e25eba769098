"""The networks of `convoy train`."""

from convoy.train.models.catalog import find_model, make_model

__all__ = ["find_model", "make_model"]
