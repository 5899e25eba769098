"""How a convolution is lowered on a CPU."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from convoy.cpu import canonical, library, lowering, placement, tally, threads
from convoy.cpu.convolution import ConvolutionParameters, OneDnnConvolution, recognise
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

# oneDNN's numbers for the types.
_TYPES = {"float16": 1, "bfloat16": 2, "float32": 3}


def lower(ctx: mlir.LoweringRuleContext, lhs: Any, rhs: Any, **parameters: Any) -> Sequence[Any]:
    """Lower to a native kernel; where that cannot be, to XLA in the layout it is fast at."""
    own = lowering.jax_rule(lax.conv_general_dilated_p)
    if placement.must_be_portable(ctx):
        return own(ctx, lhs, rhs, **parameters)
    convolution = ConvolutionParameters.of(parameters)
    if convolution.crops:
        return _rewrite(ctx, lhs, rhs, partial(canonical.crop_first, parameters=convolution))
    if placement.is_on_one_device(ctx):
        native = _native(ctx, convolution)
        if native is not None:
            return _call(ctx, lhs, rhs, *native)
    if canonical.is_canonical(convolution) or not _has_fast_path(ctx):
        tally.count("convolution by XLA")
        return own(ctx, lhs, rhs, **parameters)
    tally.count("convolution by XLA, in its fast layout")
    return _rewrite(ctx, lhs, rhs, partial(canonical.convolve, parameters=convolution))


def _rewrite(
    ctx: mlir.LoweringRuleContext, lhs: Any, rhs: Any, function: Callable[[Array, Array], Array]
) -> Sequence[Any]:
    """Lower what `function` does instead, convolutions in it by `lower` again."""
    return mlir.lower_fun(function, multiple_results=False)(ctx, lhs, rhs)


def _native(
    ctx: mlir.LoweringRuleContext, parameters: ConvolutionParameters
) -> tuple[OneDnnConvolution, np.ndarray, int, str] | None:
    """Find a form of the convolution that there is a kernel for on this machine."""
    kernels = library.find()
    lhs, rhs, out = placement.arrays(*ctx.avals_in, *ctx.avals_out)
    dtype = lhs.dtype.name
    if kernels is None or not (lhs.dtype == rhs.dtype == out.dtype and kernels.computes(dtype)):
        return None
    found = recognise(lhs.shape, rhs.shape, out.shape, parameters)
    if found is None:
        return None
    description, count = describe(found, dtype), threads.for_each_device()
    implementation = kernels.implementation(description, count)
    return (found, description, count, implementation) if implementation else None


def describe(convolution: OneDnnConvolution, dtype: str) -> np.ndarray:
    """Write a convolution as `Convolution::Parse` in `native/convolution.cc` reads it."""
    c = convolution
    rank = len(c.strides)
    grouped = len(c.weights.sizes) > rank + 2
    numbers = [c.kind, _TYPES[dtype], rank, grouped]
    for tensor in (c.source, c.weights, c.destination):
        numbers += [*tensor.sizes, *tensor.strides]
    numbers += [*c.strides, *(d - 1 for d in c.dilations), *c.padding, *c.padding_after()]
    return np.array(numbers, np.int64)


def _call(
    ctx: mlir.LoweringRuleContext,
    lhs: Any,
    rhs: Any,
    convolution: OneDnnConvolution,
    description: np.ndarray,
    count: int,
    implementation: str,
) -> Sequence[Any]:
    kind = convolution.kind.name.lower().replace("_", " ")
    tally.count(f"convolution by {library.maker(implementation)}, {kind}")
    if convolution.reverse_rhs:
        rhs = _reverse(rhs, convolution.reverse_rhs)
    operands, avals = [lhs, rhs], placement.arrays(*ctx.avals_in)
    if convolution.swap_operands:
        operands.reverse()
        avals.reverse()
    if convolution.source_slice:
        operands[0], avals[0] = _slice(operands[0], avals[0], convolution.source_slice)
    call = jax.ffi.ffi_lowering("convoy_convolution")
    results = call(
        ctx.replace(avals_in=avals),
        *operands,
        description=description,
        threads=np.int64(count),
        own_core=threads.keep_to_a_core(),
    )
    if convolution.reverse_result:
        return [_reverse(results[0], convolution.reverse_result)]
    return results


def _reverse(operand: Any, axes: Sequence[int]) -> Any:
    return stablehlo.reverse(operand, mlir.dense_int_array(axes))


def _slice(operand: Any, aval: ShapedArray, window: Sequence[slice]) -> tuple[Any, ShapedArray]:
    starts, limits, strides = zip(
        *(part.indices(size) for part, size in zip(window, aval.shape, strict=True)), strict=True
    )
    part = stablehlo.slice(
        operand, *(mlir.dense_int_array(ends) for ends in (starts, limits, strides))
    )
    return part, aval.update(shape=tuple(part.type.shape))


def _has_fast_path(ctx: mlir.LoweringRuleContext) -> bool:
    """Say whether XLA has a fast convolution for the rank and the type."""
    (lhs,) = placement.arrays(ctx.avals_in[0])
    return 3 <= lhs.ndim <= 5 and lhs.dtype.name in ("float32", "float16")
