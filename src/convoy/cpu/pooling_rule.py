"""How poolings and the gradient of max pooling are lowered on a CPU.

These kernels are our own: they run over the channels of one position after the other, in the
processor's vector registers, where XLA visits single elements. The gradient finds its maxima anew,
so that nothing but the operand has to be kept for it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from convoy.cpu import library, lowering, placement, tally, threads
from convoy.cpu.pooling import Pooling, Window, recognise
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

# With fewer channels next to each other there is nothing to gain over XLA's own loops.
_FEWEST_CHANNELS = 4


def _lower_reduction(
    primitive: Primitive,
    target: str,
    ctx: mlir.LoweringRuleContext,
    operand: Any,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> Sequence[Any]:
    window = Window(window_dimensions, window_strides, padding, window_dilation)
    operand_aval, pooled = placement.arrays(ctx.avals_in[0], ctx.avals_out[0])
    pooling = None
    if all(step == 1 for step in base_dilation):
        pooling = _native(ctx, operand_aval.shape, pooled.shape, window)
    if pooling is None:
        return lowering.jax_rule(primitive)(
            ctx,
            operand,
            window_dimensions=window_dimensions,
            window_strides=window_strides,
            padding=padding,
            base_dilation=base_dilation,
            window_dilation=window_dilation,
        )
    return _call(target, ctx, pooling, operand)


def _lower_gradient(
    ctx: mlir.LoweringRuleContext,
    source: Any,
    operand: Any,
    *,
    select_prim: Primitive,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> Sequence[Any]:
    window = Window(window_dimensions, window_strides, padding, (1,) * len(padding))
    pooled, operand_aval = placement.arrays(*ctx.avals_in)
    pooling = None
    if select_prim is lax.ge_p:
        pooling = _native(ctx, operand_aval.shape, pooled.shape, window)
    if pooling is None:
        return lowering.jax_rule(lax.select_and_scatter_add_p)(
            ctx,
            source,
            operand,
            select_prim=select_prim,
            window_dimensions=window_dimensions,
            window_strides=window_strides,
            padding=padding,
        )
    return _call("convoy_max_pool_gradient", ctx, pooling, source, operand)


def _native(
    ctx: mlir.LoweringRuleContext, shape: Sequence[int], pooled: Sequence[int], window: Window
) -> Pooling | None:
    """Find the pooling that our kernels can do here."""
    avals = placement.arrays(*ctx.avals_in, *ctx.avals_out)
    if placement.must_be_portable(ctx) or not placement.is_on_one_device(ctx):
        return None
    if library.find() is None or any(aval.dtype != np.float32 for aval in avals):
        return None
    pooling = recognise(shape, pooled, window)
    return pooling if pooling and pooling.inner >= _FEWEST_CHANNELS else None


def _call(
    target: str, ctx: mlir.LoweringRuleContext, pooling: Pooling, *operands: Any
) -> Sequence[Any]:
    tally.count(target.removeprefix("convoy_").replace("_", " "))
    return jax.ffi.ffi_lowering(target)(
        ctx,
        *operands,
        description=np.array(pooling.description(), np.int64),
        threads=np.int64(threads.for_each_device()),
    )


lower_max: Callable[..., Sequence[Any]] = partial(
    _lower_reduction, lax.reduce_window_max_p, "convoy_max_pool"
)
lower_sum: Callable[..., Sequence[Any]] = partial(
    _lower_reduction, lax.reduce_window_sum_p, "convoy_sum_pool"
)
lower_max_gradient: Callable[..., Sequence[Any]] = _lower_gradient
