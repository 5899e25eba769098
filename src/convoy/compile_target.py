"""Devices that programs are compiled for without access to them, and stand-ins for their arrays.

While a target is in use, strategies select its devices. Arrays that would be moved there become
`CompileOnlyArray`s, which have a shape, a type and a sharding but no values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from convoy.types import PyTree
from jax.sharding import Sharding, SingleDeviceSharding


@dataclass(frozen=True)
class CompileTarget:
    """Devices of another machine.

    Attributes:
        name: the name that the user gave.
        devices: JAX's compile-only devices.
        memory: bytes of memory of each device that programs can use.
        flops: operations per second of each device.
        bandwidth: bytes per second of its memory.
    """

    name: str
    devices: tuple[jax.Device, ...]
    memory: int
    flops: float
    bandwidth: float


_target: CompileTarget | None = None


def target() -> CompileTarget | None:
    """Return the target that is in use, or `None`."""
    return _target


@contextlib.contextmanager
def use(new: CompileTarget) -> Iterator[None]:
    """Use a target in the block."""
    global _target
    before, _target = _target, new
    try:
        yield
    finally:
        _target = before


def default_device() -> jax.Device:
    """Return the device of programs without a mesh: the target's first, or JAX's default."""
    return jax.devices()[0] if _target is None else _target.devices[0]


def is_compile_only(device: jax.Device) -> bool:
    """Return whether programs can be compiled for a device but not run on it."""
    return _target is not None and device in _target.devices


def has_device_of(sharding: Sharding | None) -> bool:
    """Return whether a sharding, or the default one, is over devices of the target."""
    if _target is None:
        return False
    return sharding is None or is_compile_only(next(iter(sharding.device_set)))


class Shard(NamedTuple):
    """The part of an array on one device; named as in `jax.Array.addressable_shards`."""

    device: jax.Device
    data: CompileOnlyArray


class CompileOnlyArray(jax.ShapeDtypeStruct):
    """A stand-in for an array on compile-only devices.

    It has those attributes of `jax.Array` that the engine uses. Computations outside of compiled
    programs, such as the conversion of a metric to a number, use zeros as its values.
    """

    is_fully_addressable = True

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def addressable_shards(self) -> list[Shard]:
        shape = self.sharding.shard_shape(self.shape)
        return [
            Shard(device, stand_in(shape, self.dtype, SingleDeviceSharding(device)))
            for device in self.sharding.device_set
        ]

    def copy(self) -> CompileOnlyArray:
        return stand_in(self.shape, self.dtype, self.sharding)

    def copy_to_host_async(self) -> None:
        """Do nothing."""

    def is_ready(self) -> bool:
        return True

    def block_until_ready(self) -> CompileOnlyArray:
        return self

    def zeros(self) -> jax.Array:
        return jax.numpy.zeros(self.shape, self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.zeros(self.shape, dtype or self.dtype)

    def __add__(self, other: Any) -> jax.Array:
        return self.zeros() + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> jax.Array:
        return self.zeros() - other

    def __truediv__(self, other: Any) -> jax.Array:
        return self.zeros() / other

    def __float__(self) -> float:
        return 0.0


def stand_in(shape: Sequence[int], dtype: Any, sharding: Sharding) -> CompileOnlyArray:
    return CompileOnlyArray(shape, jax.dtypes.canonicalize_dtype(dtype), sharding=sharding)


def stand_ins(tree: PyTree, sharding: Sharding | None) -> PyTree:
    """Return stand-ins for arrays that are moved to devices of the target."""
    placed = SingleDeviceSharding(default_device()) if sharding is None else sharding
    return jax.tree.map(lambda leaf: stand_in(leaf.shape, leaf.dtype, placed), tree)
