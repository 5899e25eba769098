"""The networks that the application knows by name."""

from convoy.train.models.find import find_model, make_model

__all__ = ["find_model", "make_model"]
