"""Convolutions of inference with the bias, the addition and the ReLU that follow them.

`FusedConvolution` is one native call. `FoldedConvolution` runs on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from convoy.cpu import kernel_dtypes, library, lowering, threads
from convoy.cpu.convolution import ConvolutionParameters, Kind, recognise
from convoy.cpu.convolution_lowering import describe
from convoy.cpu.xla_convolution import bind
from jax.core import ShapedArray


@dataclass(frozen=True)
class FusedConvolution:
    """A convolution and what follows it.

    Attributes:
        description: numbers that the native library reads.
        threads: number of threads.
        packed_bytes: size of the weights in the kernel's layout.
        result: shape and type of the result.
        adds: whether an array like the result is added to it.
        relu: whether a ReLU comes last.
        implementation: name of the implementation.
    """

    description: np.ndarray
    threads: int
    packed_bytes: int
    result: jax.ShapeDtypeStruct
    adds: bool
    relu: bool
    implementation: str

    @classmethod
    def find(
        cls,
        lhs: ShapedArray | jax.ShapeDtypeStruct,
        rhs: ShapedArray | jax.ShapeDtypeStruct,
        out: ShapedArray | jax.ShapeDtypeStruct,
        parameters: ConvolutionParameters,
        *,
        adds: bool,
        relu: bool,
    ) -> FusedConvolution | None:
        """Return the native form of a convolution between such arrays, or `None`."""
        # Whether there is a kernel is decided while a program is traced. Where there is none, the
        # equations stay as they were.
        kernels = library.find_for(kernel_dtypes.FUSED, lhs, rhs, out)
        options = kernel_dtypes.KERNELS[kernel_dtypes.FUSED].options
        if kernels is None or parameters.crops or not parameters.options <= options:
            return None
        found = recognise(lhs.shape, rhs.shape, out.shape, parameters)
        if found is None or found.kind != Kind.FORWARD:
            return None
        # The same numbers as in training, but for the kind, and two more at the end.
        # `Convolution::Parse` in `native/convolution.cc` reads them.
        numbers = describe(found, lhs.dtype)
        numbers[0] = Kind.INFERENCE
        description = np.append(numbers, np.array([adds, relu], np.int64))
        count = threads.per_device()
        implementation = kernels.implementation(description, count)
        if not implementation:
            return None
        size = kernels.packed_bytes(description, count)
        result = jax.ShapeDtypeStruct(out.shape, out.dtype)
        return cls(description, count, size, result, adds, relu, implementation)

    def pack(self, weights: jax.Array) -> jax.Array:
        """Bring weights into the layout that the kernel reads."""
        # A separate call: it depends on weights only, so the engine runs it once for many calls.
        packed = jax.ShapeDtypeStruct((self.packed_bytes,), jnp.uint8)
        return self._call("convoy_pack_weights", packed, weights)

    def __call__(
        self,
        source: jax.Array,
        packed: jax.Array,
        scale: jax.Array | None,
        bias: jax.Array,
        addend: jax.Array | None,
    ) -> jax.Array:
        """Return `relu(convolution * scale + bias + addend)`.

        Args:
            source: input of the convolution.
            packed: weights from `pack`.
            scale: factor by channel, in float32; in float32 convolutions it is `None`, because
                their weights are scaled before they are packed.
            bias: summand by channel, in float32.
            addend: array like the result, or `None`.
        """
        follows = [", addition"] * self.adds + [", rectifier"] * self.relu
        family = library.kernel_family(self.implementation)
        lowering.count(f"convolution by {family}, inference" + "".join(follows))
        if addend is None:
            # The call always has five operands; this one is not read.
            addend = jnp.asarray(np.zeros(0, source.dtype))
        if scale is None:
            # Not read in float32.
            size = 0 if source.dtype == jnp.float32 else bias.size
            scale = jnp.asarray(np.ones(size, np.float32))
        arrays = source, packed, scale, bias.astype(jnp.float32), addend
        own_core = threads.pinned()
        return self._call("convoy_inference_convolution", self.result, *arrays, own_core=own_core)

    def _call(
        self, target: str, result: jax.ShapeDtypeStruct, *arrays: jax.Array, **attributes: bool
    ) -> jax.Array:
        call = jax.ffi.ffi_call(target, result)
        count = np.int64(self.threads)
        return call(*arrays, description=self.description, threads=count, **attributes)


@dataclass(frozen=True)
class FoldedConvolution:
    """A plain convolution with scaled weights, followed by bias, addition and ReLU."""

    parameters: ConvolutionParameters
    relu: bool

    def pack(self, weights: jax.Array) -> jax.Array:
        """Return the weights as they are."""
        return weights

    def __call__(
        self,
        source: jax.Array,
        packed: jax.Array,
        scale: jax.Array | None,
        bias: jax.Array,
        addend: jax.Array | None,
    ) -> jax.Array:
        """Compute as `FusedConvolution` does in float32."""
        assert scale is None
        result = bind(source, packed, self.parameters)
        shape = [1] * result.ndim
        shape[self.parameters.dimension_numbers.out_spec[1]] = bias.size
        result = result + jnp.reshape(bias, shape)
        if addend is not None:
            result = result + addend
        return jnp.maximum(result, 0) if self.relu else result
