"""Export of trained models as versioned artifacts, and a server with TensorFlow Serving's APIs."""

from convoy.serving.export import export

__all__ = ["export"]
