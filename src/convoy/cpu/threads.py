"""Number of threads of a device's operation, and the cores that they run on."""

import os
from contextlib import AbstractContextManager
from contextvars import ContextVar

import jax
from convoy.context import bound

# Devices of a second CPU client are not counted by JAX; `expect_devices` adds them.
_device_count = 1
_limit: ContextVar[int | None] = ContextVar("limit", default=None)


def cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def per_device() -> int:
    """Return the number of threads for each CPU device of this process; devices run concurrently.

    This initialises JAX's devices, so it is to be called while a program is lowered, not before.
    """
    # One pool of threads serves all devices. Each takes its part, so that operations of several
    # devices run at the same time instead of waiting for each other.
    share = max(1, cores() // _devices())
    return min(share, _limit.get() or share)


def limit(count: int) -> AbstractContextManager[int | None]:
    """Limit the threads of operations that this thread lowers in the block."""
    return bound(_limit, count)


def pinned() -> bool:
    """Return whether each computing thread is pinned to a separate core.

    That is so if there is a core for each of several devices, or for each program that runs
    concurrently on one device with a limit of one thread.
    """
    concurrent = 1 < _devices() <= cores() or _limit.get() is not None
    return concurrent and per_device() == 1 < cores()


def expect_devices(count: int) -> None:
    """Divide the cores among at least `count` devices, even if JAX knows of fewer."""
    global _device_count
    _device_count = max(_device_count, count)


def _devices() -> int:
    return max(_device_count, jax.local_device_count("cpu"))
