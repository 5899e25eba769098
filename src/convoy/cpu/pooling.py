"""The lowering rules of poolings and of the gradient of max pooling on CPUs.

The kernels are Convoy's own: they process the channels of one position after the other, in vector
registers, where XLA visits single elements. The gradient finds the maxima again, so that only the
operand has to be kept for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import jax
import numpy as np
from convoy.cpu import library, lowering, threads
from convoy.cpu.kernel_table import KERNELS, MAX_POOL, MAX_POOL_GRADIENT, SUM_POOL
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


@dataclass(frozen=True)
class Window:
    """A window as JAX describes it, with one entry for every axis of the operand."""

    sizes: Sequence[int]
    strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    dilation: Sequence[int]

    def spans(self, axis: int) -> bool:
        """Whether the reduction has an effect along an axis."""
        return (self.sizes[axis], self.strides[axis], *self.padding[axis]) != (1, 1, 0, 0)


@dataclass(frozen=True)
class Pooling:
    """A pooling over the middle of (outer, depth, height, width, inner); see `native/pooling.h`."""

    outer: int
    inner: int
    size: tuple[int, ...]
    pooled: tuple[int, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]

    def description(self) -> np.ndarray:
        """Encode the pooling as the native library reads it."""
        by_axis = (self.size, self.pooled, self.window, self.stride, self.dilation, self.padding)
        return np.array([self.outer, self.inner, *sum(by_axis, ())], np.int64)


def recognise(shape: Sequence[int], pooled: Sequence[int], window: Window) -> Pooling | None:
    """Express a window over an operand of `shape` as a pooling over adjacent axes.

    All axes before those that the window spans become one, `outer`, and all behind it `inner`:

        NHWC, window 1 2 2 1    (N | 1, H, W | C)     inner = C: channels last
        NCHW, window 1 1 2 2    (N * C | 1, H, W | )  inner = 1: too few, left to XLA
    """
    spanned = [axis for axis in range(len(shape)) if window.spans(axis)]
    if not spanned or 0 in (*shape, *pooled):
        return None
    first, end = spanned[0], spanned[-1] + 1
    missing = AXES - (end - first)
    if missing < 0:
        return None

    def three(values: Sequence[int], absent: int = 1) -> tuple[int, ...]:
        return (absent,) * missing + tuple(values[first:end])

    return Pooling(
        outer=prod(shape[:first]),
        inner=prod(shape[end:]),
        size=three(shape),
        pooled=three(pooled),
        window=three(window.sizes),
        stride=three(window.strides),
        dilation=three(window.dilation),
        padding=three([low for low, _ in window.padding], absent=0),
    )


def _lower_reduction(
    primitive: Primitive,
    kernel: str,
    ctx: mlir.LoweringRuleContext,
    operand: Value,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> Results:
    window = Window(window_dimensions, window_strides, padding, window_dilation)
    operand_aval, pooled = lowering.arrays(ctx.avals_in[0], ctx.avals_out[0])
    pooling = None
    if all(step == 1 for step in base_dilation):
        pooling = _find_native(kernel, ctx, operand_aval.shape, pooled.shape, window)
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
    return _call(kernel, ctx, pooling, operand)


def lower_max_gradient(
    ctx: mlir.LoweringRuleContext,
    source: Value,
    operand: Value,
    *,
    select_prim: Primitive,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> Results:
    window = Window(window_dimensions, window_strides, padding, (1,) * len(padding))
    pooled, operand_aval = lowering.arrays(*ctx.avals_in)
    pooling = None
    if select_prim is lax.ge_p:
        pooling = _find_native(MAX_POOL_GRADIENT, ctx, operand_aval.shape, pooled.shape, window)
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
    return _call(MAX_POOL_GRADIENT, ctx, pooling, source, operand)


def _find_native(
    kernel: str,
    ctx: mlir.LoweringRuleContext,
    shape: Sequence[int],
    pooled: Sequence[int],
    window: Window,
) -> Pooling | None:
    """Return the pooling that a native kernel can run on this machine."""
    if lowering.must_be_portable(ctx) or not lowering.is_on_one_device(ctx):
        return None
    if library.find_for(kernel, *lowering.arrays(*ctx.avals_in, *ctx.avals_out)) is None:
        return None
    pooling = recognise(shape, pooled, window)
    # With fewer channels next to each other there is nothing to gain over XLA's own loops.
    return pooling if pooling and pooling.inner >= KERNELS[kernel].min_channels else None


def _call(
    kernel: str, ctx: mlir.LoweringRuleContext, pooling: Pooling, *operands: Value
) -> Results:
    lowering.count(kernel)
    return jax.ffi.ffi_lowering(_TARGETS[kernel])(
        ctx,
        *operands,
        description=pooling.description(),
        threads=np.int64(threads.per_device()),
    )


lower_max: Callable[..., Results] = partial(_lower_reduction, lax.reduce_window_max_p, MAX_POOL)
lower_sum: Callable[..., Results] = partial(_lower_reduction, lax.reduce_window_sum_p, SUM_POOL)
