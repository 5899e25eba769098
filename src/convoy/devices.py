"""Which devices a strategy runs on."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from convoy import distributed
from convoy.cpu import threads
from jaxlib import xla_client

VARIABLE = "CONVOY_DEVICES"
PER_REPLICA = "CONVOY_DEVICES_PER_REPLICA"


def requested() -> int | None:
    """Return the number of devices that the environment asks for.

    Raises:
        ValueError: if the variable holds anything but a positive number.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ValueError(
            f"{VARIABLE}={text!r} is not a number of devices. Set it to 1 or more, or unset it."
        )
    return int(text)


def per_replica() -> int | None:
    """Return the number of devices that `convoy launch` was told to give each replica."""
    text = os.environ.get(PER_REPLICA, "")
    return int(text) if text.isdigit() else None


def provide_virtual(count: int) -> None:
    """Have JAX split the CPU into `count` devices, if it has not started yet."""
    if count <= jax.config.jax_num_cpu_devices:  # type: ignore[attr-defined]
        return
    # Refused once JAX runs: `select` then makes devices beside those that it has.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", count)


def select(devices: int | Sequence[jax.Device] | None) -> tuple[jax.Device, ...]:
    """Return the devices to run on.

    Where JAX runs already, with fewer parts of the CPU than asked for, the CPU is split once more:
    these devices are none of `jax.devices()`, but arrays move to them as to any other.

    Args:
        devices: how many, or which ones; `None` takes the number from `CONVOY_DEVICES`, else one.
            In a run of several processes it is all of theirs.

    Raises:
        ValueError: if there are fewer devices than that.
    """
    if distributed.count() > 1:
        return _of_all_processes(devices)
    if devices is None:
        devices = requested() or 1
    if not isinstance(devices, (int, np.integer)):
        chosen = tuple(devices) if isinstance(devices, Iterable) else (devices,)
        if not all(isinstance(device, jax.Device) for device in chosen):
            raise ValueError(
                f"devices={devices!r} is neither a number of devices nor a list of JAX's devices. "
                "Pass for example 2."
            )
        if not chosen:
            raise ValueError("devices=[] names no device. Pass at least one, or a number.")
        return chosen
    if isinstance(devices, bool) or devices < 1:
        raise ValueError(f"devices={devices!r} is not a number of devices. Pass 1 or more.")
    provide_virtual(int(devices))
    present = jax.devices()
    if len(present) >= devices:
        return tuple(present[:devices])
    if present[0].platform == "cpu" and jax.process_count() == 1:
        return _split_again(int(devices))
    raise ValueError(_too_few(int(devices), present))


def memory(devices: tuple[jax.Device, ...]) -> int:
    """Return the bytes of memory that one of some devices has; virtual ones share the host's."""
    own = next(device for device in devices if device.process_index == distributed.index())
    stats = own.memory_stats() if own.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return host // len(devices)


def for_replicas(devices: tuple[jax.Device, ...], replicas: int | None) -> tuple[jax.Device, ...]:
    """Return the devices that hold a replica; name those that are left over.

    Raises:
        ValueError: if there are fewer devices than replicas.
    """
    if replicas is None or replicas == len(devices):
        return devices
    if isinstance(replicas, bool) or replicas < 1:
        raise ValueError(f"replicas={replicas!r} is not a number of replicas. Pass 1 or more.")
    if replicas > len(devices):
        raise ValueError(
            f"{replicas} replicas do not fit on {len(devices)} devices. Pass at most "
            f"replicas={len(devices)}, or devices={replicas}."
        )
    left = ", ".join(map(str, devices[replicas:]))
    warnings.warn(
        f"{replicas} replicas leave {len(devices) - replicas} of {len(devices)} devices unused: "
        f"{left}. Pass devices={replicas}, or more replicas.",
        stacklevel=3,
    )
    return devices[:replicas]


@cache
def _split_again(count: int) -> tuple[jax.Device, ...]:
    """Split the CPU into devices beside those that JAX has, as it cannot be told of more."""
    threads.expect_devices(count)
    client: Any = xla_client.make_cpu_client(num_devices=count)
    return tuple(client.devices())


def _of_all_processes(devices: int | Sequence[jax.Device] | None) -> tuple[jax.Device, ...]:
    """Return the devices of all processes: none can be left out of what they do together."""
    present = tuple(jax.devices())
    asked = devices if isinstance(devices, int) or devices is None else len(devices)
    if asked not in (None, len(present)):
        raise ValueError(
            f"{asked} devices were asked for, but the {distributed.count()} processes of this run "
            f"were launched with {len(present)}. Leave `devices` out, or launch with "
            f"--num-replicas {asked}."
        )
    return present


def _too_few(count: int, present: Sequence[jax.Device]) -> str:
    problem = f"{count} devices were asked for, but JAX has {len(present)} ({present[0].platform})."
    if present[0].platform != "cpu":
        return f"{problem} Ask for at most {len(present)}."
    return f"{problem} Set {VARIABLE}={count} before Python starts, in every process."
