"""The lowering rule of convolutions on CPUs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from convoy.cpu import kernel_dtypes, library, lowering, threads, xla_convolution
from convoy.cpu.convolution import ConvolutionParameters, OneDnnConvolution, recognise
from convoy.cpu.kernel_dtypes import KERNELS, ONEDNN_TYPES, CpuFeature
from convoy.cpu.lowering import Results, Value
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir


def lower(ctx: mlir.LoweringRuleContext, lhs: Value, rhs: Value, **parameters: Any) -> Results:
    """Lower to a native kernel if there is one, else to XLA in the layout it is fast in."""
    # exported, or of unknown sizes        -> JAX's own rule
    # negative padding                     -> crop, then lower the rest again
    # native kernel for type and form      -> call into the native library
    # XLA is fast in another layout only   -> transpose, then lower the rest again
    # otherwise                            -> JAX's own rule
    own = lowering.jax_rule(lax.conv_general_dilated_p)
    if lowering.must_be_portable(ctx):
        return own(ctx, lhs, rhs, **parameters)
    convolution = ConvolutionParameters.of(parameters)
    if convolution.crops:
        return _rewrite(ctx, lhs, rhs, partial(xla_convolution.crop_first, parameters=convolution))
    if lowering.is_on_one_device(ctx):
        results = _call_native(ctx, lhs, rhs, convolution)
        if results is not None:
            return results
    (lhs_array,) = lowering.arrays(ctx.avals_in[0])
    has_fast_layout = KERNELS[kernel_dtypes.XLA].takes(CpuFeature.NONE, lhs_array)
    if not has_fast_layout or xla_convolution.is_in_fast_layout(convolution):
        lowering.count("convolution by XLA")
        return own(ctx, lhs, rhs, **parameters)
    lowering.count(kernel_dtypes.XLA)
    return _rewrite(ctx, lhs, rhs, partial(xla_convolution.convolve, parameters=convolution))


def _rewrite(
    ctx: mlir.LoweringRuleContext, lhs: Value, rhs: Value, function: Callable[[Array, Array], Array]
) -> Results:
    """Lower a function of the operands instead; its convolutions go through `lower` again."""
    return mlir.lower_fun(function, multiple_results=False)(ctx, lhs, rhs)


def describe(convolution: OneDnnConvolution, dtype: np.dtype) -> np.ndarray:
    """Encode a convolution as `Convolution::Parse` in `native/convolution.cc` reads it."""
    c = convolution
    rank = len(c.strides)
    grouped = len(c.weights.sizes) > rank + 2
    numbers = [c.kind, ONEDNN_TYPES[dtype.name], rank, grouped]
    for tensor in (c.source, c.weights, c.destination):
        numbers += [*tensor.sizes, *tensor.strides]
    # oneDNN counts the elements between two of a dilated kernel, JAX the step from one to the next.
    numbers += [*c.strides, *(d - 1 for d in c.dilations), *c.padding, *c.padding_after()]
    return np.array(numbers, np.int64)


def _call_native(
    ctx: mlir.LoweringRuleContext, lhs: Value, rhs: Value, parameters: ConvolutionParameters
) -> Results | None:
    """Call the native kernel for a convolution; `None` if this machine has none."""
    left, right, out = lowering.arrays(*ctx.avals_in, *ctx.avals_out)
    kernels = library.find_for(parameters.form, left, right, out)
    convolution = recognise(left.shape, right.shape, out.shape, parameters) if kernels else None
    if kernels is None or convolution is None:
        return None
    description, count = describe(convolution, out.dtype), threads.per_device()
    implementation = kernels.implementation(description, count)
    if implementation is None:
        return None
    kind = convolution.kind.name.lower().replace("_", " ")
    lowering.count(f"convolution by {library.kernel_family(implementation)}, {kind}")
    if convolution.reverse_rhs:
        rhs = _reverse(rhs, convolution.reverse_rhs)
    operands, avals = [lhs, rhs], [left, right]
    if convolution.swap_operands:
        operands.reverse()
        avals.reverse()
    if convolution.source_slice:
        operands[0], avals[0] = _slice(operands[0], avals[0], convolution.source_slice)
    results = jax.ffi.ffi_lowering("convoy_convolution")(
        ctx.replace(avals_in=avals),
        *operands,
        description=description,
        threads=np.int64(count),
        own_core=threads.pinned(),
    )
    if convolution.reverse_result:
        (result,) = results
        return [_reverse(result, convolution.reverse_result)]
    return results


def _reverse(operand: Any, axes: Sequence[int]) -> Value:
    return stablehlo.reverse(operand, mlir.dense_int_array(axes))


def _slice(operand: Value, aval: ShapedArray, window: Sequence[slice]) -> tuple[Value, ShapedArray]:
    starts, limits, strides = zip(
        *(part.indices(size) for part, size in zip(window, aval.shape, strict=True)), strict=True
    )
    part = stablehlo.slice(
        operand, *(mlir.dense_int_array(ends) for ends in (starts, limits, strides))
    )
    return part, aval.update(shape=tuple(part.type.shape))
