"""Arrays on devices, some of which may be another process's."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from convoy import distributed
from convoy.cpu.threads import cores

ALIGNMENT = 64
"""Bytes; what XLA asks of arrays that it did not allocate itself."""

WORTH_THREADS = 4_000_000
"""Bytes whose copy takes longer than starting threads."""


def put(tree: Any, sharding: jax.sharding.Sharding | None) -> Any:
    """Move arrays that every process has to devices; each moves what belongs on its own."""
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda value: _put_share(value, sharding), tree)


def aligned(tree: Any) -> Any:
    """Copy host arrays to where every CPU device of this process can read them in place.

    JAX copies an array to each device that does not begin at a multiple of 64 bytes, as most of
    NumPy's do not. What does is copied to none.
    """
    return jax.tree.map(_aligned, tree)


def to_host(value: Any) -> np.ndarray:
    """Return the whole of an array; all processes must ask if it is divided over them."""
    if is_elsewhere(value) and not value.is_fully_replicated:
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(value, tiled=True))
    return np.asarray(value)


def to_own(value: jax.Array) -> jax.Array:
    """Return an array as this process's own, for computations that the others do not share."""
    if not is_elsewhere(value):
        return value
    return (
        value.addressable_data(0) if value.is_fully_replicated else jax.numpy.array(to_host(value))
    )


def fetch_absent(values: list[Any]) -> list[Any]:
    """Fetch the arrays that this process has nothing of from others; all processes must ask."""
    owners = distributed.who_has([not is_absent(value) for value in values])
    found = list(values)
    missing = [place for place, those in enumerate(owners) if len(those) < distributed.count()]
    for owner in sorted({owners[place][0] for place in missing}):
        places = [place for place in missing if owners[place][0] == owner]
        own = [_or_zeros(values[place]) for place in places]
        for place, array in zip(places, distributed.arrays_from(owner, own), strict=True):
            if is_absent(values[place]):
                found[place] = jax.numpy.array(array)
    return found


def is_absent(value: Any) -> bool:
    """Return whether none of an array is in this process."""
    return is_elsewhere(value) and not value.addressable_shards


def is_elsewhere(value: Any) -> bool:
    """Return whether an array is on devices of other processes, too."""
    return isinstance(value, jax.Array) and not value.is_fully_addressable


def _or_zeros(value: jax.Array) -> np.ndarray:
    return np.zeros(value.shape, value.dtype) if is_absent(value) else np.asarray(value)


def _put_share(value: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    if isinstance(value, jax.Array) and value.sharding.is_equivalent_to(sharding, value.ndim):
        return value
    host = to_host(value)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    return jax.make_array_from_callback(host.shape, sharding, lambda share: host[share])


def _aligned(value: Any) -> Any:
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
    """Copy an array; a large one with all cores, since NumPy lets go of Python meanwhile."""
    parts = cores() if source.nbytes > WORTH_THREADS else 1
    if parts == 1:
        target[...] = source
        return
    bounds = [len(source) * part // parts for part in range(parts + 1)]
    with ThreadPoolExecutor(parts) as threads:
        copying = [
            threads.submit(np.copyto, target[first:last], source[first:last], "unsafe")
            for first, last in itertools.pairwise(bounds)
        ]
    for part in copying:
        part.result()
