"""Context variables, attributes and signal masks that are set for a block."""

import contextlib
import signal
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

Value = TypeVar("Value")


@contextlib.contextmanager
def bound(variable: ContextVar[Value], value: Value) -> Iterator[Value]:
    """Set a context variable for the block, and return its value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


@contextlib.contextmanager
def changed(attributes: Iterable[tuple[object, str, Any]]) -> Iterator[None]:
    """Give attributes other values for the block.

    Args:
        attributes: owner, name and value in the block of each attribute.
    """
    attributes = list(attributes)
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in attributes]
    try:
        for owner, name, value in attributes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextlib.contextmanager
def blocked(*signals: signal.Signals) -> Iterator[None]:
    """Block signals in this thread for the block.

    A process that starts in it keeps them blocked, from its first instruction on.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
