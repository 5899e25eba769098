"""Convoy: a plain Keras model, trained and served as a compiled device program."""

from convoy import _start, cpu

_start.start()

from convoy import cross_replica  # noqa: E402
from convoy.strategy import Strategy, prepare  # noqa: E402

__version__ = "0.1.0"

__all__ = ["Strategy", "__version__", "cpu", "cross_replica", "prepare"]
