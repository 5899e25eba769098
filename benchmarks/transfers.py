"""Round-trip time of an array between devices of two processes, for three mechanisms of JAX.

    convoy launch --num-instances 2 benchmarks/transfers.py

Compares JAX's transfer server, which pipelines across processes use; a permutation over a mesh of
both processes; and JAX's own `device_put`. For each size it prints the round-trip time in
milliseconds, and the time that Python is blocked. Expected in a minute on two cores: a permutation
blocks Python for nearly all of its time, the others for less than a millisecond.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial

import jax
import numpy as np

PORT = 29500
SIZES = {"4 KB": 1 << 10, "1 MB": 1 << 18, "16 MB": 1 << 22}
ROUNDS = 20
Send = Callable[[jax.Array | None, jax.ShapeDtypeStruct, jax.Device, jax.Device], jax.Array | None]

# Before JAX starts, which importing Convoy does.
jax.config.update(
    "jax_cross_host_transfer_socket_address",
    f"127.0.0.1:{PORT + int(os.environ.get('CONVOY_PROCESS', 0))}",
)
jax.config.update("jax_cross_host_transport_addresses", "127.0.0.1:0")

from convoy import distributed  # noqa: E402
from convoy.pipeline.communication import move, transfer_server  # noqa: E402
from convoy.pipeline.device_layout import is_local  # noqa: E402


def by_server(
    value: jax.Array | None, shape: jax.ShapeDtypeStruct, source: jax.Device, target: jax.Device
) -> jax.Array | None:
    moved = move(None if value is None else [value], [shape], source, target)
    return moved[0] if moved else None


def by_device_put(
    value: jax.Array | None, shape: jax.ShapeDtypeStruct, source: jax.Device, target: jax.Device
) -> jax.Array | None:
    if value is None:
        at = jax.sharding.SingleDeviceSharding(source)
        value = jax.make_array_from_single_device_arrays(shape.shape, at, [], dtype=shape.dtype)
    moved = jax.device_put(value, target)
    return moved if is_local(target) else None


@partial(jax.jit, static_argnums=(1, 2))
def _permuted(value: jax.Array, mesh: jax.sharding.Mesh, way: tuple[int, int]) -> jax.Array:
    divided = jax.sharding.PartitionSpec("ends")
    return jax.shard_map(
        lambda x: jax.lax.ppermute(x, "ends", [way]), mesh=mesh, in_specs=divided, out_specs=divided
    )(value)


def by_permute(
    value: jax.Array | None, shape: jax.ShapeDtypeStruct, source: jax.Device, target: jax.Device
) -> jax.Array | None:
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("ends",))
    own = jax.local_devices()[0]
    given = jax.device_put(np.zeros(shape.shape, shape.dtype), own) if value is None else value
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("ends"))
    both = jax.make_array_from_single_device_arrays(
        (2 * shape.shape[0], *shape.shape[1:]), sharding, [given]
    )
    moved = _permuted(both, mesh, (devices.index(source), devices.index(target)))
    return moved.addressable_data(0) if is_local(target) else None


def measure(send: Send, elements: int) -> tuple[float, float]:
    """Return the median time there and back again, and that of starting it, in milliseconds."""
    first, second = jax.devices()
    shape = jax.ShapeDtypeStruct((elements,), np.dtype("float32"))
    own = jax.device_put(np.ones(elements, np.float32), jax.local_devices()[0])
    taken, held = [], []
    for _ in range(ROUNDS + 2):
        distributed.wait_for_all("a round")
        begin = time.perf_counter()
        there = send(own if distributed.is_first() else None, shape, first, second)
        back = send(there, shape, second, first)
        started = time.perf_counter()
        jax.block_until_ready(back)
        taken.append(time.perf_counter() - begin)
        held.append(started - begin)
    return 1e3 * statistics.median(taken[2:]), 1e3 * statistics.median(held[2:])


def main() -> None:
    """Print a line for each way."""
    transfer_server()
    ways = {"transfer server": by_server, "permute": by_permute, "device_put": by_device_put}
    for name, send in ways.items():
        found = [measure(send, elements) for elements in SIZES.values()]
        if distributed.is_first():
            cells = [f"{whole:.2f} ({held:.2f})" for whole, held in found]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
