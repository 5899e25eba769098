"""Times of programs that run on several devices at once, as they will in a run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from convoy.engine.replica_axis import AXIS
from convoy.engine.step.replicate import EVERYWHERE, over_replicas

# A program is timed this often, or until it has taken this long; the median counts.
RUNS, SECONDS = 10, 3.0
AT_LEAST = 3
# It is run so often in a row before it is waited for, as devices wait for each other only at the
# end of a weight update.
IN_A_ROW = 3
# Larger than a cache.
BYTES = 64 << 20


def together(
    function: Callable[..., Any], arguments: Sequence[Sequence[Any]], *, consumed: bool = False
) -> float:
    """Return the seconds of a function that runs on several devices at once.

    Args:
        function: is started with the arguments of each device, and then waited for.
        arguments: of each device.
        consumed: whether it takes what it returned as its first argument the next time.
    """
    own = [list(each) for each in arguments]
    taken: list[float] = []
    for run in range(RUNS + 1):
        start = time.perf_counter()
        for _ in range(IN_A_ROW):
            results = [function(*each) for each in own]
            if consumed:
                own = [[result, *each[1:]] for each, result in zip(own, results, strict=True)]
        jax.block_until_ready(results)
        if run:  # not the first, which compiles
            taken.append((time.perf_counter() - start) / IN_A_ROW)
        if len(taken) >= AT_LEAST and IN_A_ROW * sum(taken) > SECONDS:
            break
    return statistics.median(taken)


def speed(devices: Sequence[jax.Device]) -> tuple[float, float]:
    """Return the floating-point operations and bytes per second that each of some devices reaches.

    The first are those of a convolution as ResNet-50 has it, the second those of an addition.
    """
    image, kernel = (8, 56, 56, 64), (3, 3, 64, 64)

    def convolve(x: jax.Array, weights: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, weights, (1, 1), "SAME", dimension_numbers=numbers)

    operations = 2 * np.prod(image) * np.prod(kernel[:3])
    arguments = [_on(device, np.ones(image, "f4"), np.ones(kernel, "f4")) for device in devices]
    flops = operations / together(jax.jit(convolve), arguments)
    ones = np.ones(BYTES // 4, "f4")
    seconds = together(jax.jit(lambda x: x + 1), [_on(device, ones) for device in devices])
    return float(flops), 2 * BYTES / seconds


def update_speed(devices: Sequence[jax.Device]) -> float:
    """Return the bytes of weights per second that momentum updates on each of some devices."""

    def update(state: tuple, gradient: jax.Array) -> tuple:
        weight, momentum = state
        momentum = 0.9 * momentum - 0.01 * gradient
        return weight + momentum, momentum

    array = np.ones(BYTES // 4, "f4")
    arguments = [[tuple(_on(device, array, array)), *_on(device, array)] for device in devices]
    return BYTES / together(jax.jit(update, donate_argnums=0), arguments, consumed=True)


def exchange_speed(devices: Sequence[jax.Device]) -> float:
    """Return the bytes per second at which devices add up gradients, as `Machine.exchange`."""
    count = len(devices)
    if count == 1:
        return float("inf")
    mesh = jax.sharding.Mesh(np.array(devices), (AXIS,))
    mean = over_replicas(lambda x: (jax.lax.pmean(x, AXIS),), mesh, (EVERYWHERE,), (EVERYWHERE,))
    everywhere = jax.sharding.NamedSharding(mesh, EVERYWHERE)
    array = jax.device_put(jnp.ones(BYTES // 4, jnp.float32), everywhere)
    return 2 * (count - 1) / count * BYTES / together(jax.jit(mean), [[array]])


def _on(device: jax.Device, *arrays: np.ndarray) -> list[jax.Array]:
    return [jax.device_put(array, device) for array in arrays]
