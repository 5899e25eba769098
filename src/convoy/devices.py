"""Which devices a strategy runs on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import jax
import numpy as np

VARIABLE = "CONVOY_DEVICES"


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


def provide_virtual(count: int) -> None:
    """Have JAX split the CPU into `count` devices, if it has not started yet."""
    if count <= jax.config.jax_num_cpu_devices:  # type: ignore[attr-defined]
        return
    # Refused once JAX runs: what it has is then what there is, and `select` says so.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", count)


def select(devices: int | Sequence[jax.Device] | None) -> tuple[jax.Device, ...]:
    """Return the devices to run on.

    Args:
        devices: how many, or which ones; `None` takes the number from `CONVOY_DEVICES`, else one.

    Raises:
        ValueError: if there are fewer devices than that.
    """
    if devices is None:
        devices = requested() or 1
    if not isinstance(devices, (int, np.integer)):
        chosen = tuple(devices)
        if not chosen:
            raise ValueError("devices=[] names no device. Pass at least one, or a number.")
        return chosen
    if isinstance(devices, bool) or devices < 1:
        raise ValueError(f"devices={devices!r} is not a number of devices. Pass 1 or more.")
    provide_virtual(int(devices))
    present = jax.devices()
    if len(present) < devices:
        raise ValueError(_too_few(int(devices), present))
    return tuple(present[:devices])


def _too_few(count: int, present: Sequence[jax.Device]) -> str:
    platform = present[0].platform
    problem = f"{count} devices were asked for, but JAX has {len(present)} ({platform})."
    if platform != "cpu":
        return f"{problem} Ask for at most {len(present)}."
    return (
        f"{problem} A CPU is split into virtual devices when JAX starts, and it is running "
        f"already: make the Strategy before the first model or array, or set {VARIABLE}={count} "
        "before Python starts."
    )
