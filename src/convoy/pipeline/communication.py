"""Communication between stages: transfers between devices, and the tensors in transfer.

Between processes the sender offers arrays on JAX's transfer server and the receiver fetches them.
Neither waits for the other, and Python waits for neither. A permute over a mesh of both devices
would block Python in both processes until it is done. JAX's own `device_put` to another process
needs a port that is fixed before JAX starts. `benchmarks/transfers.py` measures all three.
"""

import socket
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from convoy import distributed
from convoy.engine.data.placement import device_put, is_local
from convoy.pipeline.device_layout import DeviceLayout
from convoy.pipeline.schedule import Action, Kind

# What stages send along a replica's row, for a model whose stage 2 also reads an output of stage 0:
#
#     stage 0 ----- outputs, loss so far -----> stage 1 ----- outputs, loss so far -----> stage 2
#         |                                                                                  ^
#         +---- output that stage 2 reads, sent once by stage 0 ------------------------------+
#
#     stage 0 <---- gradients of what it received ---- stage 1 <---- gradients ---- stage 2
#         ^                                                                            |
#         +---- gradient of the skipped output, added up in the backward pass ----------+
#
# A tensor is sent once to each rank that reads it, and dropped after the last stage that reads it
# there. The loss goes along with the tensors to the next stage, as a part of the same transfer.

TensorShapes = dict[int, jax.ShapeDtypeStruct]
LOSS = jax.ShapeDtypeStruct((), jnp.float32)
"""The shape and type of the loss that stages pass on."""


class TransferServer:
    """Sends arrays to devices of other processes, and fetches arrays from them.

    Each transfer has a number, which both processes count in the same way.

    Args:
        device: a device of this process.
    """

    def __init__(self, device: jax.Device) -> None:
        from jax.experimental import transfer

        address = socket.gethostbyname(distributed.address())
        start: Any = transfer.start_transfer_server
        self._server = start(device.client, f"{address}:0", [f"{address}:0"])
        self._addresses: list[str] = distributed.from_all(self._server.address())
        self._connections: dict[int, Any] = {}
        self._transfers: Counter[tuple[int, int]] = Counter()

    def move(
        self,
        values: Sequence[jax.Array] | None,
        shapes: Sequence[jax.ShapeDtypeStruct],
        source: jax.Device,
        target: jax.Device,
    ) -> list[jax.Array]:
        """Run this process's side of a transfer; see the function `move` of this module."""
        ends = source.process_index, target.process_index
        self._transfers[ends] += 1
        # Each receiver counts separately, and all receivers use the same server.
        number = self._transfers[ends] * distributed.count() + target.process_index
        if values is not None:
            self._server.await_pull(number, list(values))
            return []
        sharding = jax.sharding.SingleDeviceSharding(target)
        wanted = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding) for s in shapes]
        process = source.process_index
        if process not in self._connections:
            self._connections[process] = self._server.connect(self._addresses[process])
        return self._connections[process].pull(number, wanted)


def move(
    values: Sequence[jax.Array] | None,
    shapes: Sequence[jax.ShapeDtypeStruct],
    source: jax.Device,
    target: jax.Device,
) -> list[jax.Array]:
    """Start moving arrays from one device to another.

    All processes of a run start the same moves in the same order.

    Args:
        values: the arrays, if the source is in this process; else `None`.
        shapes: shapes of the arrays, used if the source is in another process.
        source: device that has the arrays.
        target: device that they are moved to.

    Returns:
        The arrays, if the target is in this process; else an empty list.
    """
    if source.process_index == target.process_index or (is_local(source) and is_local(target)):
        return [] if values is None else device_put(list(values), target)
    if not (is_local(source) or is_local(target)):
        return []
    return transfer_server().move(values, shapes, source, target)


@cache
def transfer_server() -> TransferServer:
    """Return this process's transfer server; all processes start their servers together."""
    return TransferServer(jax.local_devices()[0])


class StageCommunication:
    """Tensors, losses and gradients that stages have sent, until they are received.

    All processes iterate over the same actions in the same order. Each process runs the actions of
    its own stages, and receives the results that the other actions send to it.

    Args:
        layout: stages and their devices.
        shapes: shapes of the tensors between stages, if some stages are in other processes.
    """

    def __init__(self, layout: DeviceLayout, shapes: TensorShapes) -> None:
        self._layout, self._shapes = layout, shapes
        self._tensors: dict[tuple[int, int, int, int], jax.Array] = {}
        self._losses: dict[tuple[int, int, int], jax.Array] = {}
        self._gradients: dict[tuple[int, int, int], list[jax.Array]] = {}

    def expect(self, action: Action, replica: int) -> None:
        """Start receiving the results that an action of another process sends to this one."""
        if action.kind == Kind.FORWARD:
            self.send_forward(action.stage, action.micro_batch, replica, None, None)
        elif action.kind != Kind.BACKWARD_WEIGHTS:
            self.send_backward(action.stage, action.micro_batch, replica, None)

    def send_forward(
        self,
        stage: int,
        micro_batch: int,
        replica: int,
        outputs: Sequence[jax.Array] | None,
        loss: jax.Array | None,
    ) -> None:
        """Send the outputs of a stage to their readers, and the loss so far to the next stage.

        The values are `None` if the stage is in another process.
        """
        layout = self._layout
        if stage == layout.last:
            return
        own = layout.stages[stage].outputs
        computed = dict(zip(own, outputs, strict=True)) if outputs is not None else None
        source = layout.device(replica, layout.mapping[stage])
        for rank in layout.targets[stage]:
            tensors = [tensor for tensor in own if rank in layout.last_reader[tensor]]
            with_loss = rank == layout.mapping[stage + 1]
            values = None
            if computed is not None and loss is not None:
                values = [*(computed[t] for t in tensors), *([loss] if with_loss else [])]
            shapes = [*self._shapes_of(tensors), *([LOSS] if with_loss else [])]
            moved = move(values, shapes, source, layout.device(replica, rank))
            for tensor, value in zip(tensors, moved, strict=False):
                self._tensors[replica, micro_batch, tensor, rank] = value
            if with_loss and moved:
                self._losses[replica, micro_batch, stage + 1] = moved[-1]

    def receive_forward(self, stage: int, micro_batch: int, replica: int) -> tuple[jax.Array, ...]:
        """Return the tensors that a stage receives, and drop those that no later stage reads."""
        layout = self._layout
        rank = layout.mapping[stage]
        received = []
        for tensor in layout.stages[stage].received:
            key = (replica, micro_batch, tensor, rank)
            is_last = layout.last_reader[tensor][rank] == stage
            received.append(self._tensors.pop(key) if is_last else self._tensors[key])
        return tuple(received)

    def receive_loss(self, stage: int, micro_batch: int, replica: int) -> jax.Array | None:
        """Return the sum of the losses of all earlier stages; `None` for the first stage."""
        return self._losses.pop((replica, micro_batch, stage), None)

    def send_backward(
        self, stage: int, micro_batch: int, replica: int, gradients: Sequence[jax.Array] | None
    ) -> None:
        """Send the gradients of received tensors to the stages that computed these tensors.

        The gradients are `None` if the stage is in another process.
        """
        layout = self._layout
        source = layout.device(replica, layout.mapping[stage])
        for index, tensor in enumerate(layout.with_gradient[stage]):
            target = layout.device(replica, layout.mapping[layout.producer[tensor]])
            values = None if gradients is None else [gradients[index]]
            for moved in move(values, self._shapes_of([tensor]), source, target):
                self._gradients.setdefault((replica, micro_batch, tensor), []).append(moved)

    def receive_backward(
        self, stage: int, micro_batch: int, replica: int
    ) -> tuple[list[jax.Array], ...]:
        """Return for each output of a stage the gradients that its readers have sent."""
        layout = self._layout
        if stage == layout.last:
            return ()
        return tuple(
            self._gradients.pop((replica, micro_batch, tensor), [])
            for tensor in layout.stages[stage].outputs
        )

    def _shapes_of(self, tensors: Sequence[int]) -> list[jax.ShapeDtypeStruct]:
        return [self._shapes[tensor] for tensor in tensors] if self._shapes else []
