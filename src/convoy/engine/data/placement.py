"""Placement of arrays on devices, some of which may belong to other processes."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from convoy import compile_target, distributed
from convoy.cpu.threads import cores
from convoy.types import PyTree, Shapes
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

AXIS = "replica"
"""The name of the mesh axis over which replicas are laid out."""

REPLICATED = PartitionSpec()
SHARDED = PartitionSpec(None, AXIS)
"""Sharded along the second axis; the first axis is the micro-batch, the second the sample."""

ALIGNMENT = 64
"""Bytes; the alignment that XLA requires of arrays that it did not allocate itself."""

THREADED_COPY = 4_000_000
"""Bytes above which a copy takes longer than starting threads for it."""


class Placement:
    """The devices of a run: one device, or a mesh whose replicas divide each micro-batch.

    Attributes:
        mesh: the devices, or `None` for JAX's default device.
        replicas: the number of replicas.
        platform: the platform of the devices, such as `"cpu"`.
        is_compile_only: whether the devices are those of a compile target.
        spans_processes: whether some of the devices belong to other processes.
        crosses_processes: whether parts of one replica are in different processes.
    """

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = mesh
        self.replicas = mesh.size if mesh else 1
        first = mesh.devices.flat[0] if mesh else compile_target.default_device()
        self.platform: str = first.platform
        self.is_compile_only = compile_target.is_compile_only(first)
        is_shared = mesh is not None and mesh.is_multi_process
        self.spans_processes = is_shared and not self.is_compile_only
        self.crosses_processes = False

    def is_own(self, replica: int) -> bool:
        """Return whether a replica runs in this process."""
        if self.mesh is None:
            return True
        return is_local(self.mesh.devices.flat[replica])

    def replicate(self, tree: PyTree) -> PyTree:
        """Copy arrays to every device."""
        return self._put(tree, REPLICATED)

    def shard(self, block: PyTree) -> PyTree:
        """Divide the micro-batches of a block over the replicas."""
        return self._put(block, SHARDED)

    def _put(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        sharding = None if self.mesh is None else NamedSharding(self.mesh, spec)
        if self.is_compile_only:
            return compile_target.stand_ins(tree, sharding)
        return _device_put(tree, sharding)


def is_local(device: jax.Device) -> bool:
    """Return whether a device belongs to this process; compile-only devices count as its own."""
    return device.process_index == jax.process_index() or compile_target.is_compile_only(device)


def device_put(tree: PyTree, sharding: Sharding | jax.Device | None) -> PyTree:
    """Move arrays that every process has to devices; each process fills its own devices."""
    if isinstance(sharding, jax.Device):
        sharding = SingleDeviceSharding(sharding)
    if compile_target.has_device_of(sharding):
        return compile_target.stand_ins(tree, sharding)
    return _device_put(tree, sharding)


def _device_put(tree: PyTree, sharding: Sharding | None) -> PyTree:
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda value: _put_shards(value, sharding), tree)


def aligned(tree: PyTree) -> PyTree:
    """Copy host arrays to memory that every CPU device of this process can read in place.

    JAX copies an array to each device if it does not begin at a multiple of 64 bytes, as most of
    NumPy's arrays do not. An aligned array is not copied at all.
    """
    return jax.tree.map(_aligned, tree)


def to_host(value: jax.Array) -> np.ndarray:
    """Return a complete array; a collective call if it is sharded over processes."""
    if spans_processes(value) and not value.is_fully_replicated:
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(value, tiled=True))
    return np.asarray(value)


def to_local(value: jax.Array) -> jax.Array:
    """Return an array that only this process holds, for computations without other processes."""
    if not spans_processes(value):
        return value
    return (
        value.addressable_data(0) if value.is_fully_replicated else jax.numpy.array(to_host(value))
    )


def fetch_absent(values: list[jax.Array]) -> list[jax.Array]:
    """Fetch the arrays that this process has no shard of; a collective call of all processes."""
    owners = distributed.who_has([not _is_absent(value) for value in values])
    found = list(values)
    missing = [index for index, those in enumerate(owners) if len(those) < distributed.count()]
    for owner in sorted({owners[index][0] for index in missing}):
        indices = [index for index in missing if owners[index][0] == owner]
        local = [_or_zeros(values[index]) for index in indices]
        for index, array in zip(indices, distributed.arrays_from(owner, local), strict=True):
            if _is_absent(values[index]):
                found[index] = jax.numpy.array(array)
    return found


def spans_processes(value: PyTree) -> bool:
    """Return whether an array is also on devices of other processes."""
    return isinstance(value, jax.Array) and not value.is_fully_addressable


def tree_bytes(tree: PyTree | Shapes) -> int:
    """Return the bytes that arrays take on a device."""
    return sum(
        leaf.size * jax.dtypes.canonicalize_dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def tree_shapes(tree: PyTree) -> Shapes:
    """Return the shapes and types of arrays."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def tree_zeros(shapes: Shapes) -> PyTree:
    """Return arrays of zeros of some shapes and types."""
    return jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), shapes)


def _is_absent(value: jax.Array) -> bool:
    return spans_processes(value) and not value.addressable_shards


def _or_zeros(value: jax.Array) -> np.ndarray:
    return np.zeros(value.shape, value.dtype) if _is_absent(value) else np.asarray(value)


def _put_shards(value: jax.Array, sharding: Sharding) -> jax.Array:
    if isinstance(value, jax.Array) and value.sharding.is_equivalent_to(sharding, value.ndim):
        return value
    host = to_host(value)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _aligned(value: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
    if isinstance(value, jax.Array):
        return value
    host = np.asarray(value)
    dtype = jax.dtypes.canonicalize_dtype(host.dtype)
    if host.dtype == dtype and host.flags.c_contiguous and host.ctypes.data % ALIGNMENT == 0:
        return host
    size = host.size * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    copy = memory[start : start + size].view(dtype).reshape(host.shape)
    _copy(host, copy)
    return copy


def _copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copy an array; large arrays with all cores, because NumPy releases the GIL during a copy."""
    parts = cores() if source.nbytes > THREADED_COPY else 1
    if parts == 1:
        target[...] = source
        return
    bounds = [len(source) * part // parts for part in range(parts + 1)]
    with ThreadPoolExecutor(parts) as threads:
        copies = [
            threads.submit(np.copyto, target[first:last], source[first:last], "unsafe")
            for first, last in itertools.pairwise(bounds)
        ]
    for copy in copies:
        copy.result()
