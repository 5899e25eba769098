"""A convolution of inference: packed weights, a bias, and what follows it, in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from convoy.cpu import library, tally, threads
from convoy.cpu.convolution import ConvolutionParameters, Kind, recognise
from convoy.cpu.convolution_rule import describe


@dataclass(frozen=True)
class FusedConvolution:
    """A convolution, plus a bias, perhaps plus an array like the result, perhaps rectified."""

    description: np.ndarray
    threads: int
    packed_bytes: int
    result: jax.ShapeDtypeStruct
    adds: bool
    rectifies: bool
    implementation: str

    @classmethod
    def find(
        cls,
        lhs: Any,
        rhs: Any,
        out: Any,
        parameters: ConvolutionParameters,
        *,
        adds: bool,
        rectifies: bool,
    ) -> FusedConvolution | None:
        """Return the native form of a convolution between such arrays, if there is one."""
        kernels = library.find()
        is_single = all(array.dtype == jnp.float32 for array in (lhs, rhs, out))
        if kernels is None or not is_single or parameters.crops:
            return None
        found = recognise(lhs.shape, rhs.shape, out.shape, parameters)
        if found is None or found.kind != Kind.FORWARD or parameters.batch_group_count > 1:
            return None
        numbers = describe(found, "float32")
        numbers[0] = Kind.INFERENCE
        description = np.append(numbers, np.array([adds, rectifies], np.int64))
        count = threads.for_each_device()
        implementation = kernels.implementation(description, count)
        if not implementation:
            return None
        size = kernels.packed_bytes(description, count)
        result = jax.ShapeDtypeStruct(out.shape, out.dtype)
        return cls(description, count, size, result, adds, rectifies, implementation)

    def pack(self, weights: jax.Array) -> jax.Array:
        """Bring weights into the layout that the kernel reads."""
        packed = jax.ShapeDtypeStruct((self.packed_bytes,), jnp.uint8)
        return self._call("convoy_pack_weights", packed, weights)

    def __call__(
        self, source: jax.Array, packed: jax.Array, bias: jax.Array, addend: jax.Array | None
    ) -> jax.Array:
        follows = [", addition"] * self.adds + [", rectifier"] * self.rectifies
        maker = library.maker(self.implementation)
        tally.count(f"convolution by {maker}, inference" + "".join(follows))
        if addend is None:
            addend = jnp.asarray(np.zeros(0, np.float32))
        arrays = source, packed, bias, addend
        own_core = threads.keep_to_a_core()
        return self._call("convoy_fused_convolution", self.result, *arrays, own_core=own_core)

    def _call(
        self, target: str, result: jax.ShapeDtypeStruct, *arrays: jax.Array, **attributes: bool
    ) -> jax.Array:
        call = jax.ffi.ffi_call(target, result)
        count = np.int64(self.threads)
        return call(*arrays, description=self.description, threads=count, **attributes)
