"""The lowering rule of sums on CPUs: in 16 bits, sums by channel are native.

The gradient of a bias is such a sum. XLA rounds a sum in 16 bits after every addition, so that a
sum of ones in bfloat16 does not exceed 256. It therefore divides a long sum into shorter ones, of a
copy of the operand in float32. The native kernel reads the operand once, sums in float32 and
float64, and rounds once.
"""

from typing import Any

import jax
import numpy as np
from convoy.cpu import library, lowering, threads
from convoy.cpu.kernel_dtypes import CHANNEL_SUMS
from convoy.cpu.lowering import Results, Value
from jax import lax
from jax.interpreters import mlir


def lower(ctx: mlir.LoweringRuleContext, operand: Value, **parameters: Any) -> Results:
    """Lower a sum to the native kernel if it is one by channel, else as JAX does."""
    if not _is_native(ctx, parameters["axes"]):
        return lowering.jax_rule(lax.reduce_sum_p)(ctx, operand, **parameters)
    lowering.count(CHANNEL_SUMS)
    return jax.ffi.ffi_lowering("convoy_channel_sums")(
        ctx, operand, threads=np.int64(threads.per_device())
    )


def _is_native(ctx: mlir.LoweringRuleContext, axes: tuple[int, ...]) -> bool:
    """Return whether the native kernel computes a sum over these axes."""
    if lowering.must_be_portable(ctx) or not lowering.is_on_one_device(ctx):
        return False
    operand, result = lowering.arrays(*ctx.avals_in, *ctx.avals_out)
    # Channels last: all axes but the last one are reduced; a single channel is reduced with them.
    rows = set(range(operand.ndim - 1))
    if not rows <= set(axes) or not operand.size:
        return False
    return library.find_for(CHANNEL_SUMS, operand, result) is not None
