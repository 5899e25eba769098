"""How many threads one device's operation may use, and where they run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_sharing = 1
_most: ContextVar[int | None] = ContextVar("most", default=None)


def cores() -> int:
    """Count the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def for_each_device() -> int:
    """Divide the cores among this process's CPU devices, which compute side by side.

    Makes JAX choose its devices, if it has not yet: for use while a program is lowered.
    """
    share = max(1, cores() // _devices())
    return min(share, _most.get() or share)


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Have what is lowered in the block, by this thread, use no more threads."""
    token = _most.set(count)
    try:
        yield
    finally:
        _most.reset(token)


def keep_to_a_core() -> bool:
    """Say whether each thread that computes, alone for its device or not, has a core to itself."""
    side_by_side = 1 < _devices() <= cores() or _most.get() is not None
    return side_by_side and for_each_device() == 1 < cores()


def share_among(devices: int) -> None:
    """Count on so many devices from now on, where JAX itself knows of fewer."""
    global _sharing
    _sharing = max(_sharing, devices)


def _devices() -> int:
    return max(_sharing, jax.local_device_count("cpu"))
