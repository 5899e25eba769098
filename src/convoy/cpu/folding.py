"""Batch normalisation folded into convolutions, in a form that runs on any machine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from convoy.cpu.convolution import ConvolutionParameters
from convoy.cpu.inference_fusion import Chain, rewrite_chains
from convoy.cpu.kernel_support import FOLDED, KERNELS, CpuFeature
from convoy.cpu.xla_convolution import bind
from convoy.jaxpr import Atom, Trace
from jax.extend.core import Var


@dataclass(frozen=True)
class FoldedConvolution:
    """A plain convolution with scaled weights, followed by bias, addition and ReLU."""

    parameters: ConvolutionParameters
    relu: bool

    def pack(self, weights: jax.Array) -> jax.Array:
        """Return the weights as they are."""
        return weights

    def __call__(
        self, source: jax.Array, packed: jax.Array, bias: jax.Array, addend: jax.Array | None
    ) -> jax.Array:
        result = bind(source, packed, self.parameters)
        shape = [1] * result.ndim
        shape[self.parameters.dimension_numbers.out_spec[1]] = bias.size
        result = result + jnp.reshape(bias, shape)
        if addend is not None:
            result = result + addend
        return jnp.maximum(result, 0) if self.relu else result


def fold(trace: Trace, constants: Collection[Var]) -> Trace:
    """Multiply the factors by channel that follow a convolution into its weights.

    Args:
        trace: a forward pass.
        constants: inputs that stay the same over many calls.
    """
    return rewrite_chains(trace, constants, _folded)


def _folded(chain: Chain) -> FoldedConvolution | None:
    scales = any(operation in ("mul", "div") for operation, _ in chain.by_channel)
    out: Atom = chain.convolution.outvars[0]
    if not scales or not KERNELS[FOLDED].takes(CpuFeature.NONE, out.aval):
        return None
    return FoldedConvolution(chain.parameters, chain.relu)
