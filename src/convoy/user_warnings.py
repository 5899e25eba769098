"""Warnings that point at the user's line."""

import functools
import sys
import warnings

INTERNAL = ("convoy", "keras", "contextlib")


def warn(message: str) -> None:
    """Show a warning at the nearest calling line outside of Convoy and Keras."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in INTERNAL:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


@functools.cache
def warn_once(message: str) -> None:
    """Show a warning as `warn` does, the first time only.

    Keras's warnings about its configuration point at a line of Keras, so that Python shows each of
    them once. A script calls `fit` and `evaluate` at several lines.
    """
    warn(message)
