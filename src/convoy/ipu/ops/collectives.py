"""Common parts of the collective operations over replicas."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import wraps

import jax
from convoy import cross_replica
from convoy.context import bound
from convoy.estimator.jax_function import function, is_symbolic
from convoy.types import PyTree

_symbolic_calls: ContextVar[list[str] | None] = ContextVar("convoy_ipu_exchanges", default=None)


def replica_groups(size: int | None) -> list[list[int]]:
    """Return the indices of the replicas in each group of neighbours.

    Raises:
        ValueError: if the size does not divide the number of replicas.
    """
    count = cross_replica.count()
    size = size or count
    if size < 1 or count % size:
        raise ValueError(f"replica_group_size={size}. Pass a number that divides {count} replicas.")
    return [list(range(first, first + size)) for first in range(0, count, size)]


def check_replication_factor(replication_factor: int) -> None:
    """Raise `ValueError` if a number is not the number of replicas."""
    count = cross_replica.count()
    if replication_factor != count:
        raise ValueError(
            f"replication_factor={replication_factor} is not the number of replicas, {count}. Pass "
            f"{count}."
        )


def on_symbolic_tensors(operation: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Make an operation of arrays accept the symbolic tensors of a model function."""

    @wraps(operation)
    def called(x: jax.Array, *args: object, **kwargs: object) -> PyTree:
        if not is_symbolic(x):
            return operation(x, *args, **kwargs)
        calls = _symbolic_calls.get()
        if calls is not None:
            calls.append(operation.__name__)
        return function(lambda array: operation(array, *args, **kwargs))(x)

    return called


def collect_symbolic_calls() -> AbstractContextManager[list[str] | None]:
    """Collect the names of operations that a model function calls in the block."""
    return bound(_symbolic_calls, [])
