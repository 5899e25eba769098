"""Devices of a pipeline: replicas, the ranks within a replica, and the variables on each rank."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import keras
import numpy as np
from convoy import compile_target, distributed, keras_bridge
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.placement import AXIS, Placement, device_put, is_local, to_local
from convoy.engine.state import Variables
from convoy.engine.step.replicate import SEED_STRIDE, Roles
from convoy.pipeline.stages import calls_of, has_gradient, make_stages, stage_assignment
from convoy.types import PyTree, Shapes

# The devices of a strategy are divided into rows, one for each replica of the pipeline:
#
#     rank            0     1     2        mapping: the rank of each stage, such as [0, 1, 2, 1]
#     replica 0      d0    d1    d2   <--  a row: activations and their gradients move along it
#     replica 1      d3    d4    d5
#                     ^
#                     a column: the `DeviceGroup` of rank 0, over which gradients are reduced
#
# A variable is stored in one column: that of the rank whose stages use it. All stages that share a
# variable must therefore be on one rank. During a device call, every replica has its own values
# (`ReplicaValues`), because statistics and random seeds differ between replicas. Between device
# calls, the values of a column are one replicated array, so that Keras and other code can read it.
#
# Rows may lie in several processes. A process then holds only the columns in which it has a device.

ReplicaValues = dict[int, dict[int, jax.Array]]
"""Values of variables, by replica and then by the id of the variable."""


class PlacedData(NamedTuple):
    """Data on the devices that read it.

    Attributes:
        shapes: shapes and types before the data was divided over replicas.
        copies: the data by replica and rank, for the devices of this process.
    """

    shapes: Shapes
    copies: dict[int, dict[int, PyTree]]


class PipelinePlacement(Placement):
    """The devices of all replicas of a pipeline.

    Data is placed on the ranks that read it: those whose stages read the model's inputs, and the
    rank of the last stage, which reads the targets.

    Args:
        devices: all devices; those that do not fill a replica stay unused.
        devices_per_replica: number of devices of each replica.
        readers: ranks that read data.
    """

    def __init__(
        self, devices: Sequence[jax.Device], devices_per_replica: int, readers: Sequence[int]
    ) -> None:
        super().__init__(mesh=None)
        self.replicas = len(devices) // devices_per_replica
        self.rows = [
            devices[r * devices_per_replica : (r + 1) * devices_per_replica]
            for r in range(self.replicas)
        ]
        self.own = [r for r, row in enumerate(self.rows) if any(map(is_local, row))]
        """The replicas that have a device in this process."""
        self.readers = tuple(readers)
        self.platform = devices[0].platform
        self.spans_processes = not all(is_local(device) for row in self.rows for device in row)
        self.crosses_processes = self.spans_processes and any(
            len({device.process_index for device in row}) > 1 for row in self.rows
        )

    def is_own(self, replica: int) -> bool:
        return replica in self.own

    def replicate(self, tree: PyTree) -> PlacedData:
        """Copy data to every reader of every replica in this process."""
        return PlacedData(_shapes(tree), {r: self._to_readers(tree, r) for r in self.own})

    def shard(self, block: PyTree) -> PlacedData:
        """Give each replica in this process its shard of the second axis, the samples."""
        size = jax.tree.leaves(block)[0].shape[1] // self.replicas
        copies = {}
        for r in self.own:
            shard = jax.tree.map(lambda leaf, first=r * size: leaf[:, first : first + size], block)
            copies[r] = self._to_readers(shard, r)
        return PlacedData(_shapes(block), copies)

    def _to_readers(self, tree: PyTree, replica: int) -> dict[int, PyTree]:
        row = self.rows[replica]
        return {k: device_put(tree, row[k]) for k in self.readers if is_local(row[k])}


def _shapes(tree: PyTree) -> Shapes:
    """Return shapes and types as they are on a device."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)),
        tree,
    )


def data_position(chunk: Chunk, rank: int, index: int, replica: int) -> tuple:
    """Return the position of a micro-batch on a device, as arguments of `fetcher`'s function."""
    number = np.int32(replica)
    if chunk.layout == "block":
        return chunk.source.copies[replica][rank], np.int32(index), number
    arrays, order, offset = chunk.source
    source = (arrays.copies[replica][rank], order and order.copies[replica][rank], offset)
    return source, np.int32(index), number


class DeviceGroup:
    """The devices of one rank, one per replica.

    Dictionaries by replica hold only the replicas whose device of this rank is in this process.
    """

    def __init__(self, placement: PipelinePlacement, rank: int) -> None:
        column = [row[rank] for row in placement.rows]
        self.devices = {r: device for r, device in enumerate(column) if is_local(device)}
        self.mesh: jax.sharding.Mesh | None = None
        self.sharding: jax.sharding.Sharding = jax.sharding.SingleDeviceSharding(column[0])
        if placement.replicas > 1:
            self.mesh = jax.sharding.Mesh(np.array(column), (AXIS,))
            self.sharding = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

    @property
    def is_local(self) -> bool:
        """Whether this process has a device of this rank."""
        return bool(self.devices)

    @property
    def first_device(self) -> jax.Device:
        return next(iter(self.devices.values()))

    def put(self, value: jax.typing.ArrayLike) -> jax.Array:
        """Move a value to every replica."""
        if self.sharding.is_fully_addressable or compile_target.has_device_of(self.sharding):
            return device_put(value, self.sharding)
        own = to_local(value) if isinstance(value, jax.Array) else value
        return self.join({r: jax.device_put(own, device) for r, device in self.devices.items()})

    def join(self, values: dict[int, jax.Array]) -> jax.Array:
        """Join the arrays of the replicas into one array, for a program over all replicas."""
        arrays = list(values.values())
        if self.mesh is None:
            return arrays[0]
        if compile_target.has_device_of(self.sharding):
            return compile_target.stand_ins(arrays[0], self.sharding)
        return jax.make_array_from_single_device_arrays(arrays[0].shape, self.sharding, arrays)

    def split(self, value: jax.Array) -> dict[int, jax.Array]:
        """Return each replica's own array."""
        if self.mesh is None:
            return dict.fromkeys(self.devices, value)
        by_device = {shard.device: shard.data for shard in value.addressable_shards}
        return {replica: by_device[device] for replica, device in self.devices.items()}

    def holds(self, value: jax.typing.ArrayLike) -> bool:
        """Return whether a value is on this rank already, possibly in another process."""
        return isinstance(value, jax.Array) and value.sharding.is_equivalent_to(
            self.sharding, value.ndim
        )

    # Every variable of a Keras model needs a value, even in a process that has no device of its
    # rank. An array without local shards has the right shape and dtype, and raises an error when it
    # is read.
    def absent(self, like: jax.Array) -> jax.Array:
        """Return a placeholder for an array that only other processes hold."""
        return jax.make_array_from_single_device_arrays(
            like.shape, self.sharding, [], dtype=like.dtype
        )


class DeviceLayout:
    """The stages of a model, their devices, and the devices of their variables.

    Args:
        model: model in stages.
        variables: variables of the model that its programs use.
        mapping: rank of every stage.
        placement: devices of all replicas.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: Variables,
        mapping: Sequence[int],
        placement: PipelinePlacement,
    ) -> None:
        self.variables, self.mapping, self.placement = variables, mapping, placement
        self.roles = Roles.of(model, variables)
        self.replicas = placement.own
        """The replicas that have a device in this process."""
        self.stages = make_stages(model, calls_of(model), stage_assignment(model) or [])
        self.last = len(self.stages) - 1
        types = {
            tensor: jax.ShapeDtypeStruct((), dtype)
            for stage in self.stages
            for call in stage.calls
            for tensor, (_, dtype) in zip(call.outputs, call.output_shapes, strict=True)
        }
        self.with_gradient = [
            [tensor for tensor in stage.received if has_gradient(types[tensor])]
            for stage in self.stages
        ]
        """The tensors that each stage receives and computes a gradient of."""
        self.groups = [DeviceGroup(placement, rank) for rank in range(max(mapping) + 1)]
        self.local_groups = [
            (rank, group) for rank, group in enumerate(self.groups) if group.is_local
        ]
        self.producer = {tensor: s.number for s in self.stages for tensor in s.outputs}
        self._find_readers()
        self._find_ranks()

    def _find_readers(self) -> None:
        self.last_reader: dict[int, dict[int, int]] = {tensor: {} for tensor in self.producer}
        """For each tensor, the ranks that receive it, and the last stage on each that reads it."""
        for stage in self.stages:
            for tensor in stage.received:
                self.last_reader[tensor][self.mapping[stage.number]] = stage.number
        self.targets = []
        """The ranks that each stage sends to; the next stage always receives the loss so far."""
        for stage in self.stages:
            following = self.mapping[stage.number + 1 : stage.number + 2]
            readers = [rank for tensor in stage.outputs for rank in self.last_reader[tensor]]
            self.targets.append(sorted({*following, *readers}))

    def _find_ranks(self) -> None:
        """Find the rank of every variable.

        Raises:
            ValueError: if a layer runs in stages on two devices.
        """
        self._rank: dict[int, int] = {}
        for stage in self.stages:
            for variable in stage.variables:
                rank = self.mapping[stage.number]
                if self._rank.setdefault(id(variable), rank) != rank:
                    raise ValueError(
                        f"The layer of {variable.path!r} runs in stages on devices "
                        f"{self._rank[id(variable)]} and {rank}, but a weight is stored on one "
                        "device. Put these stages on one device by device_mapping, or split the "
                        "model elsewhere."
                    )

    @property
    def last_group(self) -> DeviceGroup:
        """The devices on which losses and metrics are computed."""
        return self.groups[self.mapping[self.last]]

    @property
    def common_group(self) -> DeviceGroup:
        """A group of this process for values that all processes hold; if possible, the last one."""
        return next(group for group in [self.last_group, *self.groups] if group.is_local)

    def device(self, replica: int, rank: int) -> jax.Device:
        return self.placement.rows[replica][rank]

    def runs(self, stage: int, replica: int) -> bool:
        """Return whether this process runs a stage of a replica."""
        return is_local(self.device(replica, self.mapping[stage]))

    def rank_of(self, variable: keras.Variable) -> int:
        """Return the rank of a variable; a variable of no stage is on rank 0."""
        return self._rank.get(id(variable), 0)

    def group_of(self, variable: keras.Variable) -> DeviceGroup:
        return self.groups[self.rank_of(variable)]

    def by_rank(self, variables: Sequence[keras.Variable]) -> list[list[keras.Variable]]:
        """Return the variables of each rank."""
        found: list[list[keras.Variable]] = [[] for _ in self.groups]
        for variable in variables:
            found[self.rank_of(variable)].append(variable)
        return found

    def seed_offset(self, replica: int, seed: jax.Array) -> np.ndarray:
        """Return the offset of a replica's random seed from that of the first replica."""
        offset = SEED_STRIDE * replica & 0xFFFFFFFF
        return np.uint32(offset).astype(seed.dtype)

    def replica_values(self) -> ReplicaValues:
        """Return the initial values of each replica; their random seeds differ."""
        parts = self.variables.parts
        found: ReplicaValues = {replica: {} for replica in self.replicas}
        for variable in [*parts.trainable, *parts.non_trainable]:
            split = self.group_of(variable).split(keras_bridge.values([variable])[0])
            for replica, value in split.items():
                found[replica][id(variable)] = value
        for variable, is_seed in zip(parts.non_trainable, self.roles.seeds, strict=True):
            for replica in self.group_of(variable).devices if is_seed else ():
                value = found[replica][id(variable)]
                found[replica][id(variable)] = value + self.seed_offset(replica, value)
        return found

    def place(self, slot_ranks: dict[int, list[int]]) -> None:
        """Move the variables to the devices of their stages.

        Args:
            slot_ranks: ranks that use each of the optimizer's variables, by the variable's id.
        """
        parts = self.variables.parts
        targets: list[list[DeviceGroup]] = []
        for part in parts:
            everywhere = part is parts.metrics or part is parts.numerics
            for variable in part:
                ranks = slot_ranks.get(id(variable), [self.rank_of(variable)])
                targets.append(self.groups if everywhere else [self.groups[k] for k in ranks])
        values, structure = jax.tree.flatten(self.variables.read())
        if self.placement.spans_processes:
            values = _agree(values, targets)
        placed = [
            group.put(value) if group.is_local else group.absent(value)
            for group, value in zip(map(self._nearest, targets), values, strict=True)
        ]
        self.variables.write(jax.tree.unflatten(structure, placed))

    def _nearest(self, groups: list[DeviceGroup]) -> DeviceGroup:
        """Return a group that is in this process, or else the first."""
        if self.common_group in groups:
            return self.common_group
        return next((group for group in groups if group.is_local), groups[0])


def _agree(
    values: Sequence[jax.typing.ArrayLike], targets: list[list[DeviceGroup]]
) -> list[jax.typing.ArrayLike]:
    """Use the first process's values for variables that are not on their devices in all processes.

    A value that belongs on devices of several processes is always taken from the first process,
    because its current device does not show which process wrote it.
    """
    misplaced = [
        len(groups) > 1 or not groups[0].holds(value)
        for value, groups in zip(values, targets, strict=True)
    ]
    flags = distributed.any_of(misplaced)
    indices = [index for index, flag in enumerate(flags) if flag]
    shared = distributed.arrays_from_first([np.asarray(values[index]) for index in indices])
    agreed: list[jax.typing.ArrayLike] = [*values]
    for index, value in zip(indices, shared, strict=True):
        agreed[index] = value
    return agreed
