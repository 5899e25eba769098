"""Warnings that point at the user's line, however deep in Convoy or Keras they are raised."""

import sys
import warnings

INTERNAL = ("convoy", "keras", "contextlib")


def warn(message: str) -> None:
    """Show a warning at the nearest calling line outside of Convoy and Keras."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in INTERNAL:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
