"""The lowering rules of poolings and of the gradient of max pooling on CPUs.

The kernels are Convoy's own: they process the channels of one position after the other, in vector
registers, where XLA visits single elements. The gradient finds the maxima again, so that only the
operand has to be kept for it.
"""

from functools import partial
from math import prod
from typing import Any

import jax
import numpy as np
from convoy.cpu import library, lowering, threads
from convoy.cpu.kernel_dtypes import KERNELS, MAX_POOL, MAX_POOL_GRADIENT, SUM_POOL
from convoy.cpu.lowering import Results, Value
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

# Axes that the native kernels have for a window; see `native/pooling.h`.
AXES = 3

_TARGETS = {
    MAX_POOL: "convoy_max_pool",
    SUM_POOL: "convoy_sum_pool",
    MAX_POOL_GRADIENT: "convoy_max_pool_gradient",
}


def _lower(
    primitive: Primitive,
    kernel: str,
    ctx: mlir.LoweringRuleContext,
    *operands: Value,
    **parameters: Any,
) -> Results:
    """Lower a pooling, or the gradient of one, to a native kernel if there is one."""
    description = _describe(kernel, ctx, parameters)
    if description is None:
        return lowering.jax_rule(primitive)(ctx, *operands, **parameters)
    lowering.count(kernel)
    return jax.ffi.ffi_lowering(_TARGETS[kernel])(
        ctx, *operands, description=description, threads=np.int64(threads.per_device())
    )


def _describe(
    kernel: str, ctx: mlir.LoweringRuleContext, parameters: dict[str, Any]
) -> np.ndarray | None:
    """Encode a pooling as `native/pooling.h` reads it; `None` if no native kernel can run it."""
    if lowering.must_be_portable(ctx) or not lowering.is_on_one_device(ctx):
        return None
    arrays = lowering.arrays(*ctx.avals_in, *ctx.avals_out)
    if library.find_for(kernel, *arrays) is None:
        return None
    # Reductions have dilations; the gradient chooses an element by a comparison instead.
    #     reduction   operand -> pooled            gradient   pooled, operand -> operand
    ones = (1,) * arrays[0].ndim
    is_gradient = kernel == MAX_POOL_GRADIENT
    operand, pooled = reversed(arrays[:2]) if is_gradient else arrays
    if parameters.get("select_prim", lax.ge_p) is not lax.ge_p:
        return None
    if tuple(parameters.get("base_dilation", ones)) != ones:
        return None
    sizes, strides = parameters["window_dimensions"], parameters["window_strides"]
    padding, dilations = parameters["padding"], parameters.get("window_dilation", ones)
    # All axes before those that the window spans become one, `outer`, and all behind it `inner`:
    #
    #     NHWC, window 1 2 2 1    (N | 1, H, W | C)     inner = C: channels last
    #     NCHW, window 1 1 2 2    (N * C | 1, H, W | )  inner = 1: too few, left to XLA
    spanned = [
        axis
        for axis, (size, stride, ends) in enumerate(zip(sizes, strides, padding, strict=True))
        if (size, stride, *ends) != (1, 1, 0, 0)
    ]
    if not spanned or 0 in (*operand.shape, *pooled.shape):
        return None
    first, end = spanned[0], spanned[-1] + 1
    outer, inner = prod(operand.shape[:first]), prod(operand.shape[end:])
    missing = AXES - (end - first)
    # With fewer channels next to each other there is nothing to gain over XLA's own loops.
    if missing < 0 or inner < KERNELS[kernel].min_channels:
        return None
    numbers = [outer, inner]
    for values in (operand.shape, pooled.shape, sizes, strides, dilations):
        numbers += [1] * missing + list(values[first:end])
    numbers += [0] * missing + [low for low, _ in padding[first:end]]
    return np.array(numbers, np.int64)


lower_max: lowering.Rule = partial(_lower, lax.reduce_window_max_p, MAX_POOL)
lower_sum: lowering.Rule = partial(_lower, lax.reduce_window_sum_p, SUM_POOL)
lower_max_gradient: lowering.Rule = partial(_lower, lax.select_and_scatter_add_p, MAX_POOL_GRADIENT)
