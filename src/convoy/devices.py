"""Selection of the devices that a strategy runs on."""

import contextlib
import os
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from convoy import compile_target, cpu, distributed
from convoy import precision as precisions
from convoy.arguments import whole_number
from convoy.compile_target import CompileTarget
from convoy.cpu import threads
from convoy.units import format_count
from jaxlib import xla_client

VARIABLE = "CONVOY_DEVICES"
PER_REPLICA = "CONVOY_DEVICES_PER_REPLICA"
# JAX needs some milliseconds and some hundred kilobytes per device, and has no limit of its own:
# with too many devices, the process runs out of memory.
MAX_VIRTUAL = 4096


def requested() -> int | None:
    """Return the number of devices in the variable `CONVOY_DEVICES`, or `None`.

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
    """Return the number of devices per replica that `convoy launch` has set, or `None`."""
    text = os.environ.get(PER_REPLICA, "")
    return int(text) if text.isdigit() else None


def provide_virtual(count: int) -> None:
    """Split the CPU into `count` devices of JAX, if JAX has not started yet.

    Raises:
        ValueError: if there are too many.
    """
    if count > MAX_VIRTUAL:
        raise ValueError(
            f"{count} devices are too many: a CPU can be split into at most {MAX_VIRTUAL}. Pass "
            f"{MAX_VIRTUAL} or less."
        )
    if count <= jax.config.jax_num_cpu_devices:  # type: ignore[attr-defined]
        return
    # JAX raises an error if it has already started; `select` then creates additional devices.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", count)


def select(devices: int | Sequence[jax.Device] | None) -> tuple[jax.Device, ...]:
    """Return the devices to run on.

    If JAX has already started with fewer CPU devices than requested, the CPU is split once more.
    The new devices are not in `jax.devices()`, but arrays can be moved to them as to any other.

    Args:
        devices: number of devices, or the devices themselves. `None` takes the number from
            `CONVOY_DEVICES`, else 1; in a run of several processes it means all of their devices,
            and under `convoy compile` all devices of the target.

    Raises:
        ValueError: if there are too few devices.
    """
    if distributed.count() > 1:
        return _of_all_processes(devices)
    target = compile_target.target()
    if devices is None:
        devices = requested() or (1 if target is None else len(target.devices))
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
    count = whole_number("devices", devices, "a number of devices")
    if target is not None:
        return _of_target(count, target)
    provide_virtual(count)
    present = jax.devices()
    if len(present) >= count:
        return tuple(present[:count])
    if present[0].platform == "cpu" and jax.process_count() == 1:
        return _split_again(count)
    raise ValueError(_too_few(count, present))


def memory(devices: tuple[jax.Device, ...]) -> int:
    """Return the memory of one device in bytes; virtual devices share the host's memory evenly."""
    if target := compile_target.target():
        return target.memory
    own = next(device for device in devices if device.process_index == distributed.index())
    stats = own.memory_stats() if own.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return host // len(devices)


# CUDA compute capability from which GPUs have matrix units for bfloat16.
_BFLOAT16_CAPABILITY = 8.0


def fastest_precision(device: jax.Device) -> str:
    """Return the Keras dtype policy in which a device trains fastest.

    This is `"mixed_bfloat16"` on TPUs, on GPUs with bfloat16 matrix units and on CPUs with bfloat16
    instructions, where bfloat16 kernels take 0.5-0.8x the time of float32 kernels. On all other
    devices it is `"float32"`. Float16 is never faster than float32 on a CPU.
    """
    if device.platform == "cpu":
        is_fast = "bfloat16" in cpu.status().half_instructions
    else:
        capability = getattr(device, "compute_capability", None)
        is_fast = capability is None or float(capability) >= _BFLOAT16_CAPABILITY
    return "mixed_bfloat16" if is_fast else "float32"


def find_precision(name: str, device: jax.Device) -> precisions.Precision:
    """Return the precision of a name, or the fastest one of a device for `"auto"`.

    Raises:
        ValueError: if there is no such precision.
    """
    if name != precisions.AUTO:
        return precisions.find(name)
    # All processes must use the same precision, even on hosts with different CPUs.
    return precisions.find(distributed.from_first(fastest_precision(device)))


def for_replicas(devices: tuple[jax.Device, ...], replicas: int | None) -> tuple[jax.Device, ...]:
    """Return one device per replica; warn about unused devices.

    Raises:
        ValueError: if there are fewer devices than replicas.
    """
    if replicas is None or replicas == len(devices):
        return devices
    replicas = whole_number("replicas", replicas, "a number of replicas")
    if replicas > len(devices):
        raise ValueError(
            f"{replicas} replicas do not fit on {format_count(len(devices), 'device')}. Pass at "
            f"most replicas={len(devices)}, or devices={replicas}."
        )
    left = ", ".join(map(str, devices[replicas:]))
    warnings.warn(
        f"replicas={replicas} leaves {len(devices) - replicas} of {len(devices)} devices unused: "
        f"{left}. Pass devices={replicas}, or more replicas.",
        stacklevel=3,
    )
    return devices[:replicas]


@cache
def _split_again(count: int) -> tuple[jax.Device, ...]:
    """Create a second CPU client with more devices, because JAX's own client cannot be changed."""
    threads.expect_devices(count)
    client: Any = xla_client.make_cpu_client(num_devices=count)
    return tuple(client.devices())


def _of_all_processes(devices: int | Sequence[jax.Device] | None) -> tuple[jax.Device, ...]:
    """Return the devices of all processes; collective operations need every one of them."""
    present = tuple(jax.devices())
    count = devices if isinstance(devices, int) or devices is None else len(devices)
    if count not in (None, len(present)):
        raise ValueError(
            f"{count} devices were requested, but the {distributed.count()} processes of this run "
            f"were launched with {len(present)}. Leave `devices` out, or launch with "
            f"--num-replicas {count}."
        )
    return present


def _of_target(count: int, target: CompileTarget) -> tuple[jax.Device, ...]:
    if count > len(target.devices):
        raise ValueError(
            f"{count} devices were requested, but the target {target.name} has "
            f"{len(target.devices)}. Request fewer, or name a larger target."
        )
    return target.devices[:count]


def _too_few(count: int, present: Sequence[jax.Device]) -> str:
    problem = f"{count} devices were requested, but JAX has {len(present)} ({present[0].platform})."
    if present[0].platform != "cpu":
        return f"{problem} Request at most {len(present)}."
    return f"{problem} Set {VARIABLE}={count} before Python starts, in every process."
