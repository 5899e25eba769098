"""The devices of a plan, with given or measured speeds of computation and communication."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from convoy.engine.data.placement import AXIS, REPLICATED
from convoy.engine.step.replicate import over_replicas
from convoy.report.environment import convolve
from convoy.timing import run_seconds
from convoy.types import PyTree

# A program is timed RUNS times, or until it has taken SECONDS in MIN_RUNS or more; the median
# counts.
RUNS, SECONDS, MIN_RUNS = 10, 3.0, 3
# Number of runs that are dispatched before waiting, because devices wait for each other only at the
# end of a weight update.
IN_A_ROW = 3
# Size of measured arrays, larger than a cache.
BYTES = 64 << 20


@dataclass(frozen=True)
class Machine:
    """Equal devices on equal hosts.

    Attributes:
        devices: number of devices.
        per_host: devices per host.
        memory: bytes of memory per device.
        link: bytes per second between two devices of a host; all stages of a replica are on one.
        exchange: bytes per second at which devices of a host all-reduce gradients.
        network: bytes per second that a host sends to others.
        latency: seconds before a message between hosts begins to arrive.
        update: bytes of weights per second that an optimizer updates.
        host_action: seconds of host time per action of a pipeline.
        connected: number of devices that are connected by fast links, if these are not the devices
            of a host.
    """

    devices: int
    per_host: int
    memory: float
    link: float
    exchange: float
    network: float = 3.125e9
    latency: float = 30e-6
    update: float = 1e9
    host_action: float = 250e-6
    connected: int = 0

    @property
    def group(self) -> int:
        """Number of devices that are connected by fast links."""
        return min(self.connected or self.per_host, self.devices)

    @property
    def hosts(self) -> int:
        return -(-self.devices // self.per_host)

    def exchange_seconds(self, replicas: int, stages: int, size: float) -> float:
        """Return the time of an all-reduce of `size` bytes over `replicas`.

        Among n devices, each sends and receives 2 (n - 1) / n of the bytes. The all-reduce runs
        first within a group, which is a host or other devices with fast links, and then between
        groups, where the devices of a group divide the bytes. The second step takes 2 log2(groups)
        consecutive messages.
        """
        if replicas == 1 or not size:
            return 0.0
        in_a_group = min(replicas, max(1, self.group // stages))
        groups = math.ceil(replicas / in_a_group)
        seconds = 2 * (in_a_group - 1) / in_a_group * size / self.exchange
        if groups > 1:
            # All stages in a group share its network.
            seconds += 2 * (groups - 1) / groups * size * stages / self.network
            seconds += 2 * math.log2(groups) * self.latency
        return seconds


def time_together(
    function: Callable[..., PyTree], arguments: Sequence[Sequence[PyTree]], *, feeds: bool = False
) -> float:
    """Return the seconds of a function that runs on several devices at once.

    Args:
        function: function to time.
        arguments: arguments for each device.
        feeds: whether the result becomes the first argument of the next run.
    """
    own = [list(each) for each in arguments]

    def run() -> list[PyTree]:
        nonlocal own
        for _ in range(IN_A_ROW):
            results = [function(*each) for each in own]
            if feeds:
                own = [[result, *each[1:]] for each, result in zip(own, results, strict=True)]
        return results

    jax.block_until_ready(run())  # compile it
    times = run_seconds(run, runs=RUNS, seconds=SECONDS, min_runs=MIN_RUNS)
    return statistics.median(times) / IN_A_ROW


def compute_speed(devices: Sequence[jax.Device]) -> tuple[float, float]:
    """Measure the floating-point operations and the memory bytes per second of each device.

    The operations are those of a convolution of ResNet-50, the bytes those of an addition.
    """
    image, kernel = (8, 56, 56, 64), (3, 3, 64, 64)
    operations = 2 * np.prod(image) * np.prod(kernel[:3])
    arguments = [_on(device, np.ones(image, "f4"), np.ones(kernel, "f4")) for device in devices]
    flops = operations / time_together(jax.jit(convolve), arguments)
    ones = np.ones(BYTES // 4, "f4")
    seconds = time_together(jax.jit(lambda x: x + 1), [_on(device, ones) for device in devices])
    return float(flops), 2 * BYTES / seconds


def update_speed(devices: Sequence[jax.Device]) -> float:
    """Measure the bytes of weights per second that each device updates by SGD with momentum."""

    def update(
        state: tuple[jax.Array, jax.Array], gradient: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        weight, momentum = state
        momentum = 0.9 * momentum - 0.01 * gradient
        return weight + momentum, momentum

    array = np.ones(BYTES // 4, "f4")
    arguments = [[tuple(_on(device, array, array)), *_on(device, array)] for device in devices]
    return BYTES / time_together(jax.jit(update, donate_argnums=0), arguments, feeds=True)


def exchange_speed(devices: Sequence[jax.Device]) -> float:
    """Measure the bytes per second at which devices all-reduce gradients."""
    count = len(devices)
    if count == 1:
        return float("inf")
    mesh = jax.sharding.Mesh(np.array(devices), (AXIS,))
    mean = over_replicas(lambda x: (jax.lax.pmean(x, AXIS),), mesh, (REPLICATED,), (REPLICATED,))
    everywhere = jax.sharding.NamedSharding(mesh, REPLICATED)
    array = jax.device_put(jnp.ones(BYTES // 4, jnp.float32), everywhere)
    return 2 * (count - 1) / count * BYTES / time_together(jax.jit(mean), [[array]])


def _on(device: jax.Device, *arrays: np.ndarray) -> list[jax.Array]:
    return [jax.device_put(array, device) for array in arrays]
