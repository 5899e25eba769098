"""Convolutions rewritten for XLA:CPU's fast path, if no native kernel can run them.

XLA calls its fast convolution only for channels-last operands with the weights as (spatial, in,
out). At the top level of a program it transposes other layouts by itself. Inside a loop it does
not, and falls back to a scalar loop that is tens of times slower. The gradients that autodiff
writes are never in that layout, so they are transposed here.
"""

from dataclasses import fields, replace

import jax.numpy as jnp
from convoy.cpu.convolution import ConvolutionParameters
from jax import Array, lax

# The layout of the fast path, for two spatial axes:
#
#     operand    in memory    dimension numbers
#     lhs, out   N H W C      (0, 3, 1, 2)   batch, features, spatial
#     rhs        H W I O      (3, 2, 0, 1)   out, in, spatial


def is_in_fast_layout(parameters: ConvolutionParameters) -> bool:
    """Return whether XLA takes its fast path for this convolution, inside of loops too."""
    numbers = parameters.dimension_numbers
    is_fast = numbers == _fast_layout(len(numbers.lhs_spec))
    return is_fast and parameters.batch_group_count == 1


def convolve(lhs: Array, rhs: Array, parameters: ConvolutionParameters) -> Array:
    """Convolve by transposing the operands into the fast layout: the same sums."""
    lhs_spec, rhs_spec, out_spec = parameters.dimension_numbers
    rank = len(lhs_spec)
    lhs = lax.transpose(lhs, (lhs_spec[0], *lhs_spec[2:], lhs_spec[1]))
    rhs = lax.transpose(rhs, (*rhs_spec[2:], rhs_spec[1], rhs_spec[0]))
    groups = parameters.feature_group_count
    if parameters.batch_group_count > 1:
        groups = parameters.batch_group_count
        lhs = _groups_from_batch_to_features(lhs, groups)
    out = bind(
        lhs,
        rhs,
        replace(
            parameters,
            dimension_numbers=_fast_layout(rank),
            feature_group_count=groups,
            batch_group_count=1,
        ),
    )
    # `out` is (batch, spatial, features); `out_spec` has the final place of each of these axes.
    ends_at = (out_spec[0], *out_spec[2:], out_spec[1])
    return lax.transpose(out, sorted(range(rank), key=ends_at.__getitem__))


def crop_first(lhs: Array, rhs: Array, parameters: ConvolutionParameters) -> Array:
    """Pad, dilate and crop the left operand before the convolution instead of in it.

    XLA's fast path reads past its operand if the padding is negative. Autodiff writes such padding
    for the input gradient of a convolution that pads by more than its kernel covers.
    """
    config = [(0, 0, 0)] * lhs.ndim
    for axis, (low, high), dilation in zip(
        parameters.dimension_numbers.lhs_spec[2:],
        parameters.padding,
        parameters.lhs_dilation,
        strict=True,
    ):
        config[axis] = (low, high, dilation - 1)
    ones = (1,) * len(parameters.padding)
    cropped = lax.pad(lhs, jnp.zeros((), lhs.dtype), config)
    bare = replace(parameters, padding=((0, 0),) * len(ones), lhs_dilation=ones)
    return bind(cropped, rhs, bare)


def bind(lhs: Array, rhs: Array, parameters: ConvolutionParameters) -> Array:
    """Convolve with the given parameters."""
    arguments = {field.name: getattr(parameters, field.name) for field in fields(parameters)}
    return lax.conv_general_dilated(lhs, rhs, **arguments)


def _groups_from_batch_to_features(lhs: Array, groups: int) -> Array:
    """Turn (groups * batch, spatial, features) into (batch, spatial, groups * features).

    XLA's fast path has groups of features only. A convolution with groups of its batch is the same
    sum.
    """
    batch, *spatial, features = lhs.shape
    split = lax.reshape(lhs, (groups, batch // groups, *spatial, features))
    rank = split.ndim
    moved = lax.transpose(split, (*range(1, rank - 1), 0, rank - 1))
    return lax.reshape(moved, (batch // groups, *spatial, groups * features))


def _fast_layout(rank: int) -> lax.ConvDimensionNumbers:
    channels_last = (0, rank - 1, *range(1, rank - 1))
    spatial_in_out = (rank - 1, rank - 2, *range(rank - 2))
    return lax.ConvDimensionNumbers(channels_last, spatial_in_out, channels_last)
