"""Batch normalisation folded into convolutions, in a form that any machine can run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from convoy.cpu.chains import Chain, rewrite_chains
from convoy.cpu.convolution import ConvolutionParameters
from convoy.jaxpr import Trace
from jax import lax
from jax.extend.core import Var


@dataclass(frozen=True)
class FoldedConvolution:
    """A plain convolution with scaled weights, plus what its chain had after it."""

    parameters: ConvolutionParameters
    rectifies: bool

    def pack(self, weights: jax.Array) -> jax.Array:
        """Leave weights in the layout that JAX has them in."""
        return weights

    def __call__(
        self, source: jax.Array, packed: jax.Array, bias: jax.Array, addend: jax.Array | None
    ) -> jax.Array:
        parameters = self.parameters
        result = lax.conv_general_dilated(
            source,
            packed,
            parameters.window_strides,
            parameters.padding,
            lhs_dilation=parameters.lhs_dilation,
            rhs_dilation=parameters.rhs_dilation,
            dimension_numbers=parameters.dimension_numbers,
            feature_group_count=parameters.feature_group_count,
            batch_group_count=parameters.batch_group_count,
            precision=parameters.precision,
            preferred_element_type=parameters.preferred_element_type,
        )
        shape = [1] * result.ndim
        shape[parameters.dimension_numbers.out_spec[1]] = bias.size
        result = result + jnp.reshape(bias, shape)
        if addend is not None:
            result = result + addend
        return jnp.maximum(result, 0) if self.rectifies else result


def fold(trace: Trace, constants: Collection[Var]) -> Trace:
    """Rewrite a trace so that products by channel after a convolution go into its weights.

    Args:
        trace: a forward pass.
        constants: those of its inputs that stay the same over many calls.
    """
    return rewrite_chains(trace, constants, _folded)


def _folded(chain: Chain) -> FoldedConvolution | None:
    (out,) = chain.convolution.outvars
    aval: Any = out.aval
    scales = any(operation in ("mul", "div") for operation, _ in chain.by_channel)
    # A product of 16-bit weights and scales would be rounded to 16 bits.
    if not scales or aval.dtype != jnp.float32:
        return None
    return FoldedConvolution(chain.parameters, chain.rectifies)
