"""Context variables that are set for a block."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

Value = TypeVar("Value")


@contextlib.contextmanager
def bound(variable: ContextVar[Value], value: Value) -> Iterator[Value]:
    """Set a context variable for the block, and return its value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
