"""Arrays on their way from one device to another, which may be another process's.

Between processes the sender offers arrays and the receiver fetches them, by JAX's transfer server:
neither waits for the other, and Python waits for none of it. A permute over a mesh of both devices
holds up Python at both ends until it is over; JAX's own `device_put` to another process needs a
port that is fixed before JAX starts. `benchmarks/transfers.py` measures all three.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
from convoy import distributed
from convoy.pipeline.placement import is_here

Shapes = Sequence[jax.ShapeDtypeStruct]


class Exchange:
    """Sends arrays to devices of other processes, and fetches theirs.

    A transfer is known by its number between these two distributed.

    Args:
        device: one of this process.
    """

    def __init__(self, device: jax.Device) -> None:
        from jax.experimental import transfer

        address = socket.gethostbyname(distributed.address())
        start: Any = transfer.start_transfer_server
        self._server = start(device.client, f"{address}:0", [f"{address}:0"])
        self._addresses: list[str] = distributed.from_all(self._server.address())
        self._connections: dict[int, Any] = {}
        self._asked: Counter[tuple[int, int]] = Counter()

    def move(
        self,
        values: Sequence[jax.Array] | None,
        shapes: Shapes,
        source: jax.Device,
        target: jax.Device,
    ) -> list[jax.Array]:
        """Do one end of a transfer, see `move` of this module."""
        ends = source.process_index, target.process_index
        self._asked[ends] += 1
        # Every receiver counts for itself, and all ask the same server.
        number = self._asked[ends] * distributed.count() + target.process_index
        if values is not None:
            self._server.await_pull(number, list(values))
            return []
        sharding = jax.sharding.SingleDeviceSharding(target)
        wanted = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding) for s in shapes]
        return self._connection(source.process_index).pull(number, wanted)

    def _connection(self, process: int) -> Any:
        if process not in self._connections:
            self._connections[process] = self._server.connect(self._addresses[process])
        return self._connections[process]


def move(
    values: Sequence[jax.Array] | None,
    shapes: Shapes,
    source: jax.Device,
    target: jax.Device,
) -> list[jax.Array]:
    """Start to move arrays from one device to another.

    All processes of a run ask for the same moves in the same order.

    Args:
        values: the arrays, if the source is in this process.
        shapes: theirs, if the source is in another one.
        source: where they are.
        target: where they are wanted.

    Returns:
        The arrays, if the target is in this process; else none.
    """
    if source.process_index == target.process_index:
        return [] if values is None else jax.device_put(list(values), target)
    if not (is_here(source) or is_here(target)):
        return []
    return exchange().move(values, shapes, source, target)


@cache
def exchange() -> Exchange:
    """Return this process's end of what is exchanged with others; all open theirs together."""
    return Exchange(jax.local_devices()[0])
