"""How a convolution is lowered on a CPU."""

from collections.abc import Sequence
from typing import Any

from convoy.cpu import canonical, rules, tally
from convoy.cpu.convolution import ConvolutionParameters
from jax import lax
from jax.interpreters import mlir


def lower(ctx: mlir.LoweringRuleContext, lhs: Any, rhs: Any, **parameters: Any) -> Sequence[Any]:
    """JAX's own form where it is fast or must be portable, the canonical form otherwise."""
    own = rules.jax_rule(lax.conv_general_dilated_p)
    if ctx.module_context.lowering_parameters.for_export or not _is_static(ctx):
        return own(ctx, lhs, rhs, **parameters)
    convolution = ConvolutionParameters.of(parameters)
    if canonical.is_canonical(convolution) or not _has_fast_path(ctx):
        tally.count("convolution, XLA")
        return own(ctx, lhs, rhs, **parameters)
    tally.count("convolution, XLA in canonical layout")
    rewritten = mlir.lower_fun(
        lambda lhs, rhs: canonical.convolve(lhs, rhs, convolution), multiple_results=False
    )
    return rewritten(ctx, lhs, rhs)


def _is_static(ctx: mlir.LoweringRuleContext) -> bool:
    return all(isinstance(size, int) for aval in ctx.avals_in for size in aval.shape)


def _has_fast_path(ctx: mlir.LoweringRuleContext) -> bool:
    """XLA's fast convolution takes one to three spatial dimensions, in these types."""
    return 3 <= ctx.avals_in[0].ndim <= 5 and ctx.avals_in[0].dtype.name in ("float32", "float16")
