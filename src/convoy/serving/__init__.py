"""Trained models as versioned artifacts, and a server that speaks TensorFlow Serving's contract."""

from convoy.serving.export import export

__all__ = ["export"]
