"""The axis that replicas are on: its name, and how many of them run what is being traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

AXIS = "replica"

_replicas_in_trace: ContextVar[int] = ContextVar("convoy_replicas", default=1)


def replicas_in_trace() -> int:
    """Return how many replicas run what is being traced."""
    return _replicas_in_trace.get()


@contextlib.contextmanager
def as_if_replicated(replicas: int) -> Iterator[None]:
    """Trace what is in the block for so many replicas."""
    token = _replicas_in_trace.set(replicas)
    try:
        yield
    finally:
        _replicas_in_trace.reset(token)
