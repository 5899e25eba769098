"""Where the stages of a model are, and what goes from one to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import distributed, keras_bridge
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.device_put import to_own
from convoy.engine.state import Variables
from convoy.engine.step.replicate import SEED_STRIDE
from convoy.pipeline.assignment import calls_of
from convoy.pipeline.communication.transfer import exchange
from convoy.pipeline.placement import PipelinePlacement, is_here
from convoy.pipeline.runner.stage_function import reads_data, received_by
from convoy.pipeline.stage import stages_of


class Column:
    """One place in the pipeline, in all replicas.

    What is said of each replica is by its number, and only of those whose device at this place is
    in this process.
    """

    def __init__(self, placement: PipelinePlacement, place: int) -> None:
        here = {r: row[place] for r, row in enumerate(placement.rows) if is_here(row[place])}
        self.devices: dict[int, jax.Device] = here
        self.mesh = placement.column(place) if placement.replicas > 1 else None
        self.sharding: jax.sharding.Sharding
        if self.mesh is None:
            self.sharding = jax.sharding.SingleDeviceSharding(placement.rows[0][place])
        else:
            self.sharding = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

    @property
    def is_here(self) -> bool:
        """Whether this process has a device at this place."""
        return bool(self.devices)

    @property
    def first_device(self) -> jax.Device:
        return next(iter(self.devices.values()))

    def put(self, value: Any) -> jax.Array:
        """Move a value to every replica."""
        if self.sharding.is_fully_addressable:
            return jax.device_put(value, self.sharding)
        own = to_own(value)
        return self.join({r: jax.device_put(own, device) for r, device in self.devices.items()})

    def join(self, values: dict[int, jax.Array]) -> jax.Array:
        """Make one array of those of the replicas, for a program over all of them."""
        arrays = list(values.values())
        if self.mesh is None:
            return arrays[0]
        return jax.make_array_from_single_device_arrays(arrays[0].shape, self.sharding, arrays)

    def split(self, value: jax.Array) -> dict[int, jax.Array]:
        """Return each replica's own array."""
        if self.mesh is None:
            return dict.fromkeys(self.devices, value)
        by_device = {shard.device: shard.data for shard in value.addressable_shards}
        return {replica: by_device[device] for replica, device in self.devices.items()}

    def holds(self, value: Any) -> bool:
        """Return whether a value is at this place already, which another process may have."""
        return isinstance(value, jax.Array) and value.sharding.is_equivalent_to(
            self.sharding, value.ndim
        )

    def absent(self, like: Any) -> jax.Array:
        """Return what stands for an array that only other processes have."""
        return jax.make_array_from_single_device_arrays(
            like.shape, self.sharding, [], dtype=like.dtype
        )


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
        self.replicas = placement.own
        """Those that this process has a part of."""
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
        if placement.crosses_processes:
            exchange()  # which all processes open together
        self.producer = {tensor: s.number for s in self.stages for tensor in s.outputs}
        self._find_last_readers()
        self._find_homes()

    @property
    def last_column(self) -> Column:
        """The place at which losses and metrics are computed."""
        return self.columns[self.mapping[self.last]]

    @property
    def common(self) -> Column:
        """A place in this process, for what every process knows: there metrics are, if it can."""
        places = [self.last_column, *self.columns]
        return next(column for column in places if column.is_here)

    def runs(self, stage: int, replica: int) -> bool:
        """Return whether this process runs a stage of a replica."""
        return is_here(self.device(replica, self.mapping[stage]))

    def seed_offset(self, replica: int, seed: jax.Array) -> np.ndarray:
        """Return what a replica's random stream is away from that of the first of all."""
        offset = SEED_STRIDE * replica & 0xFFFFFFFF
        return np.uint32(offset).astype(seed.dtype)

    def column_of(self, variable: keras.Variable) -> Column:
        """Return where a variable lives."""
        return self.columns[self.home(variable)]

    def values_of_replicas(
        self, variables: Variables, seeds: Sequence[bool]
    ) -> dict[int, dict[int, jax.Array]]:
        """Return what each replica begins with: all values, with a random stream of its own.

        Args:
            variables: those of the programs.
            seeds: which of the non-trainable ones are the state of a random generator.
        """
        parts = variables.parts
        found: dict[int, dict[int, jax.Array]] = {replica: {} for replica in self.replicas}
        for variable in [*parts.trainable, *parts.non_trainable]:
            split = self.column_of(variable).split(keras_bridge.values([variable])[0])
            for replica, value in split.items():
                found[replica][id(variable)] = value
        for variable, is_seed in zip(parts.non_trainable, seeds, strict=True):
            for replica in self.column_of(variable).devices if is_seed else ():
                value = found[replica][id(variable)]
                found[replica][id(variable)] = value + self.seed_offset(replica, value)
        return found

    def device(self, replica: int, place: int) -> jax.Device:
        return self.placement.rows[replica][place]

    def _find_last_readers(self) -> None:
        """Find the places that a tensor is sent to, and the last stage at each that reads it.

        A stage also sends the loss so far to the next one.
        """
        self.last_reader: dict[int, dict[int, int]] = {tensor: {} for tensor in self.producer}
        for stage in self.stages:
            for tensor in self.received[stage.number]:
                self.last_reader[tensor][self.mapping[stage.number]] = stage.number
        self.targets = [
            sorted({*following, *(k for t in stage.outputs for k in self.last_reader[t])})
            for stage in self.stages
            for following in [self.mapping[stage.number + 1 : stage.number + 2]]
        ]

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

    def place(self, variables: Variables, slots: dict[int, list[int]]) -> None:
        """Move the variables to where their stages run.

        Args:
            variables: all that the programs use.
            slots: the places that have a part in each of the optimizer's own.
        """
        parts = variables.parts
        homes = [
            self.columns
            if part is parts.metrics or part is parts.numerics
            else self._homes(v, slots)
            for part in parts
            for v in part
        ]
        values, structure = jax.tree.flatten(variables.read())
        if self.placement.spans_processes:
            values = _agreed(values, homes)
        placed = [
            home.put(value) if home.is_here else home.absent(value)
            for home, value in zip(map(self._nearest, homes), values, strict=True)
        ]
        variables.write(jax.tree.unflatten(structure, placed))

    def _homes(self, variable: keras.Variable, slots: dict[int, list[int]]) -> list[Column]:
        return [self.columns[k] for k in slots.get(id(variable), [self.home(variable)])]

    def _nearest(self, homes: list[Column]) -> Column:
        """Return the one of some places that is in this process, else the first."""
        if self.common in homes:
            return self.common
        return next((column for column in homes if column.is_here), homes[0])


def _agreed(values: list[Any], homes: list[list[Column]]) -> list[Any]:
    """Take the first process's values of all that is not at home in every process.

    What has several homes is always agreed upon: it looks the same wherever it comes from.
    """
    away = [len(h) > 1 or not h[0].holds(v) for v, h in zip(values, homes, strict=True)]
    strays = [place for place, stray in enumerate(distributed.any_of(away)) if stray]
    shared = distributed.arrays_from_first([np.asarray(values[place]) for place in strays])
    agreed = list(values)
    for place, value in zip(strays, shared, strict=True):
        agreed[place] = value
    return agreed


def position(chunk: Chunk, place: int, index: int, replica: int) -> tuple:
    """Return where a micro-batch is at a place, for the function that `fetcher` makes."""
    number = np.int32(replica)
    if chunk.layout == "block":
        return chunk.source.copies[replica][place], np.int32(index), number
    arrays, order, offset = chunk.source
    source = (arrays.copies[replica][place], order and order.copies[replica][place], offset)
    return source, np.int32(index), number
