"""The networks that the application knows by name."""

from convoy.vision.models.find import make_model

__all__ = ["make_model"]
