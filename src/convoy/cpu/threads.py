"""How many threads one device's operation may use."""

import os

import jax

_sharing = 1


def cores() -> int:
    """Count the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def for_each_device() -> int:
    """Divide the cores among this process's CPU devices, which compute side by side.

    Makes JAX choose its devices, if it has not yet: for use while a program is lowered.
    """
    return max(1, cores() // max(_sharing, jax.local_device_count("cpu")))


def share_among(devices: int) -> None:
    """Count on so many devices from now on, where JAX itself knows of fewer."""
    global _sharing
    _sharing = max(_sharing, devices)
