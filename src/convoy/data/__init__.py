"""Data sets."""

from convoy.data.digits import load_digits

__all__ = ["load_digits"]
