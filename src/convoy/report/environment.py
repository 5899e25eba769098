"""The environment of a run: versions, the machine, and the measured peak of its devices."""

import functools
import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from convoy.timing import run_seconds
from convoy.versions import installed_versions

# A matrix product and a convolution, large enough to occupy a device.
SIDE = 1024
IMAGES = (8, 28, 28, 128)
KERNEL = (3, 3, 128, 128)
# Larger than the caches of most machines.
COPIED = 64 << 20
# A program runs RUNS times, or until it has taken SECONDS in MIN_RUNS or more: the first runs are
# slow, as they use memory that the system has not provided yet. The fastest run counts.
RUNS, SECONDS, MIN_RUNS = 20, 0.2, 8


@functools.cache
def framework() -> dict[str, Any]:
    """Return the versions of packages, and the machine."""
    return {
        "versions": installed_versions(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
    }


def memory_in_use() -> int | None:
    """Return the resident memory of this process in bytes; `None` where it is unknown."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


@functools.cache
def peak(devices: tuple[jax.Device, ...]) -> dict[str, float]:
    """Measure the peak compute and memory rates of some devices, all running at the same time.

    The measurement is made once per process and takes a few tenths of a second: the faster of a
    matrix product and a convolution, in float32; and a pass over an array larger than the caches.

    Returns:
        `flops_per_second` and `bytes_per_second` of all devices together, and the `seconds` of the
        measurement.
    """
    began = time.perf_counter()
    rng = np.random.default_rng(0)
    square = rng.random((SIDE, SIDE), np.float32)
    images, kernel = rng.random(IMAGES, np.float32), rng.random(KERNEL, np.float32)
    product = 2.0 * SIDE**3
    convolution = 2.0 * np.prod(IMAGES[:3]) * np.prod(KERNEL)
    large = np.zeros(COPIED // 4, np.float32)
    flops = max(
        product / _fastest(jnp.dot, (square, square), devices),
        convolution / _fastest(convolve, (images, kernel), devices),
    )
    moved = 2 * COPIED / _fastest(jnp.negative, (large,), devices)
    return {
        "flops_per_second": float(len(devices) * flops),
        "bytes_per_second": float(len(devices) * moved),
        "seconds": time.perf_counter() - began,
    }


def convolve(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return a convolution of images with a kernel, of the size of the images."""
    return jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _fastest(
    function: Callable[..., Any], arguments: Sequence[np.ndarray], devices: Sequence[jax.Device]
) -> float:
    """Return the shortest time in which all devices run a function, in seconds."""
    program = jax.jit(function)
    given = [[jax.device_put(value, device) for value in arguments] for device in devices]

    def run() -> list[jax.Array]:
        return [program(*values) for values in given]

    jax.block_until_ready(run())  # compile it
    return min(run_seconds(run, runs=RUNS, seconds=SECONDS, min_runs=MIN_RUNS))
