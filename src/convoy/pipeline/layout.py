"""Where the stages of a model are, and what goes from one to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import keras_bridge
from convoy.engine.feed import Chunk
from convoy.engine.program import agreed
from convoy.engine.put import to_own
from convoy.engine.replicate import SEED_STRIDE
from convoy.engine.state import Variables
from convoy.pipeline.body import reads_data, received_by
from convoy.pipeline.placement import PipelinePlacement
from convoy.pipeline.split import calls_of
from convoy.pipeline.stage import stages_of


class Column:
    """One place in the pipeline, in all replicas; lists are of those of this process."""

    def __init__(self, placement: PipelinePlacement, place: int) -> None:
        self.devices = [row[place] for row in placement.own_rows]
        self.mesh = placement.column(place) if placement.replicas > 1 else None
        self._spans_processes = placement.spans_processes

    def put(self, value: Any) -> jax.Array:
        """Move a value to every replica."""
        if self.mesh is None:
            return jax.device_put(value, self.devices[0])
        if self._spans_processes:
            own = to_own(value)
            return self.join([jax.device_put(own, device) for device in self.devices])
        everywhere = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        return jax.device_put(value, everywhere)

    def join(self, values: list[jax.Array]) -> jax.Array:
        """Make one array of those of the replicas, for a program over all of them."""
        if self.mesh is None:
            return values[0]
        everywhere = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        return jax.make_array_from_single_device_arrays(values[0].shape, everywhere, values)

    def split(self, value: jax.Array) -> list[jax.Array]:
        """Return each replica's own array."""
        if self.mesh is None:
            return [value]
        by_device = {shard.device: shard.data for shard in value.addressable_shards}
        return [by_device[device] for device in self.devices]


class Layout:
    """The stages of a model, their devices and their variables.

    Args:
        model: it has stages.
        assignment: the stage of every call.
        mapping: the place of every stage.
        placement: the devices at every place, of all replicas.
    """

    def __init__(
        self,
        model: keras.Model,
        assignment: Sequence[int],
        mapping: Sequence[int],
        placement: PipelinePlacement,
    ) -> None:
        self.mapping, self.placement = mapping, placement
        self.replicas = range(len(placement.own_rows))
        """Those of this process."""
        self.first_replica = placement.first_own
        """The number of the first of them, among all."""
        self.stages = stages_of(model, calls_of(model), assignment)
        self.last = len(self.stages) - 1
        self.received = [received_by(s, s.number == self.last, model) for s in self.stages]
        types = {
            tensor: jnp.dtype(dtype)
            for stage in self.stages
            for call in stage.calls
            for tensor, (_, dtype) in zip(call.outputs, call.output_shapes, strict=True)
        }
        self.with_gradient = [
            [tensor for tensor in received if jnp.issubdtype(types[tensor], jnp.inexact)]
            for received in self.received
        ]
        """What each stage receives that is not in whole numbers."""
        self.reads = [reads_data(s, s.number == self.last, model) for s in self.stages]
        self.columns = [Column(placement, place) for place in range(max(mapping) + 1)]
        self.producer = {tensor: s.number for s in self.stages for tensor in s.outputs}
        self._find_last_readers()
        self._find_homes()

    @property
    def last_column(self) -> Column:
        """The place at which losses and metrics are computed."""
        return self.columns[self.mapping[self.last]]

    def seed_offset(self, replica: int, seed: jax.Array) -> np.ndarray:
        """Return what a replica's random stream is away from that of the first of all."""
        offset = SEED_STRIDE * (self.first_replica + replica) & 0xFFFFFFFF
        return np.uint32(offset).astype(seed.dtype)

    def beginning_anew(self, chunk: Chunk) -> Sequence[int]:
        """Return the replicas whose metrics are added to those of the first one of all."""
        return self.replicas[0 if self.first_replica else 1 :] if chunk.spread else ()

    def device(self, replica: int, place: int) -> jax.Device:
        return self.columns[place].devices[replica]

    def _find_last_readers(self) -> None:
        """Find the places that a tensor is sent to, and the last stage at each that reads it."""
        self.last_reader: dict[int, dict[int, int]] = {tensor: {} for tensor in self.producer}
        for stage in self.stages:
            for tensor in self.received[stage.number]:
                self.last_reader[tensor][self.mapping[stage.number]] = stage.number

    def _find_homes(self) -> None:
        """Find the place of every variable.

        Raises:
            ValueError: if a layer runs in stages on two devices.
        """
        self._home: dict[int, int] = {}
        for stage in self.stages:
            for variable in stage.variables:
                place = self.mapping[stage.number]
                if self._home.setdefault(id(variable), place) != place:
                    raise ValueError(
                        f"The layer of {variable.path!r} runs in stages on devices "
                        f"{self._home[id(variable)]} and {place}, but a weight lives on one. Put "
                        "these stages on one device by device_mapping, or cut elsewhere."
                    )

    def home(self, variable: keras.Variable) -> int:
        """Return the place of a variable; one that no stage has is at the first."""
        return self._home.get(id(variable), 0)

    def own(self, variables: Sequence[keras.Variable]) -> list[list[keras.Variable]]:
        """Divide variables by their places."""
        found: list[list[keras.Variable]] = [[] for _ in self.columns]
        for variable in variables:
            found[self.home(variable)].append(variable)
        return found

    def place(self, variables: Variables, slots: dict[int, int]) -> None:
        """Move the variables to where their stages run.

        Args:
            variables: all that the programs use.
            slots: the places of the optimizer's own.
        """
        parts, state = variables.parts, variables.read()
        if self.placement.spans_processes:
            state = agreed(state)
        for part, values in zip(parts, state, strict=True):
            if part is parts.metrics or part is parts.numerics:
                homes = [self.last_column] * len(part)
            else:
                homes = [self.columns[slots.get(id(v), self.home(v))] for v in part]
            keras_bridge.assign(part, [h.put(x) for h, x in zip(homes, values, strict=True)])


class Mail:
    """What stages send to later ones, until the last reader at a place has taken it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._sent: dict[tuple[int, int, int, int], jax.Array] = {}

    def send(self, stage: int, micro_batch: int, replica: int, outputs: Sequence[Any]) -> None:
        layout = self._layout
        for tensor, value in zip(layout.stages[stage].outputs, outputs, strict=True):
            for place in layout.last_reader[tensor]:
                moved = jax.device_put(value, layout.device(replica, place))
                self._sent[replica, micro_batch, tensor, place] = moved

    def receive(self, stage: int, micro_batch: int, replica: int) -> tuple[jax.Array, ...]:
        layout = self._layout
        place = layout.mapping[stage]
        found = []
        for tensor in layout.received[stage]:
            key = (replica, micro_batch, tensor, place)
            is_last = layout.last_reader[tensor][place] == stage
            found.append(self._sent.pop(key) if is_last else self._sent[key])
        return tuple(found)


def position(layout: Layout, chunk: Chunk, place: int, index: int, replica: int) -> tuple:
    """Return where a micro-batch is at a place, for the function that `fetcher` makes."""
    number = np.int32(layout.first_replica + replica)
    if chunk.layout == "block":
        return chunk.source[replica][place], np.int32(index), number
    arrays, order, offset = chunk.source
    source = (arrays[replica][place], order and order[replica][place], offset)
    return source, np.int32(index), number
