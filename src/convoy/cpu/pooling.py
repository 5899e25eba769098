"""The lowering rules of poolings and of the gradient of max pooling on CPUs.

The kernels are Convoy's own: they process the channels of one position after the other, in vector
registers, where XLA visits single elements. The gradient finds the maxima again, so that only the
operand has to be kept for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import numpy as np
from convoy.cpu import library, lowering, threads
from convoy.cpu.kernel_support import KERNELS, MAX_POOL, MAX_POOL_GRADIENT, SUM_POOL
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
        """Return whether the reduction has an effect along an axis."""
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
    """Express a window over an operand of `shape` as a pooling over adjacent axes, or `None`."""
    # All axes before those that the window spans become one, `outer`, and all behind it `inner`:
    #
    #     NHWC, window 1 2 2 1    (N | 1, H, W | C)     inner = C: channels last
    #     NCHW, window 1 1 2 2    (N * C | 1, H, W | )  inner = 1: too few, left to XLA
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


def _lower(
    primitive: Primitive,
    kernel: str,
    ctx: mlir.LoweringRuleContext,
    *operands: Value,
    **parameters: Any,
) -> Results:
    """Lower a pooling, or the gradient of one, to a native kernel if there is one."""
    pooling = _find_native(kernel, ctx, parameters)
    if pooling is None:
        return lowering.jax_rule(primitive)(ctx, *operands, **parameters)
    lowering.count(kernel)
    return jax.ffi.ffi_lowering(_TARGETS[kernel])(
        ctx,
        *operands,
        description=pooling.description(),
        threads=np.int64(threads.per_device()),
    )


def _find_native(
    kernel: str, ctx: mlir.LoweringRuleContext, parameters: dict[str, Any]
) -> Pooling | None:
    """Return the pooling that a native kernel can run on this machine."""
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
    window = Window(
        parameters["window_dimensions"],
        parameters["window_strides"],
        parameters["padding"],
        parameters.get("window_dilation", ones),
    )
    pooling = recognise(operand.shape, pooled.shape, window)
    # With fewer channels next to each other there is nothing to gain over XLA's own loops.
    return pooling if pooling and pooling.inner >= KERNELS[kernel].min_channels else None


lower_max: lowering.Rule = partial(_lower, lax.reduce_window_max_p, MAX_POOL)
lower_sum: lowering.Rule = partial(_lower, lax.reduce_window_sum_p, SUM_POOL)
lower_max_gradient: lowering.Rule = partial(_lower, lax.select_and_scatter_add_p, MAX_POOL_GRADIENT)
