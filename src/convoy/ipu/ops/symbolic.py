"""Operations over replicas on the tensors of a model function, which hold no values yet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import Any

from convoy.estimator.function import function, is_tensor

_noticed: ContextVar[list[str] | None] = ContextVar("convoy_ipu_exchanges", default=None)


def on_tensors(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Have an operation take tensors as well as arrays, and be noticed when it does."""

    @wraps(operation)
    def called(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_tensor(x):
            return operation(x, *args, **kwargs)
        noticed = _noticed.get()
        if noticed is not None:
            noticed.append(operation.__name__)
        return function(lambda array: operation(array, *args, **kwargs))(x)

    return called


@contextlib.contextmanager
def notice_exchanges() -> Iterator[list[str]]:
    """Note the operations over replicas that a model function uses in the block."""
    found: list[str] = []
    token = _noticed.set(found)
    try:
        yield found
    finally:
        _noticed.reset(token)
