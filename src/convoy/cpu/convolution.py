"""Recognition of JAX's convolutions as oneDNN's: forward, input gradient or weight gradient.

JAX has one primitive for all of them. Autodiff writes the gradients of

    y[n, o, p] = sum over i, k of  x[n, i, p * stride + k * dilation - padding] * w[o, i, k]

as further convolutions, with other operands in the places of `lhs` and `rhs`:

    form              lhs   rhs          out   lhs is      window_     lhs_      rhs_
                                               read as     strides     dilation  dilation
    ----------------  ----  -----------  ----  ----------  ----------  --------  --------
    forward           x     w            y     N, C        stride      1         dilation
    input gradient    dy    w, reversed  dx    N, C        1           stride    dilation
    weight gradient   x     dy           dw    C, N        dilation    1         stride
      (of a transposed convolution, which is an input gradient itself:)
                      dy    x            dw    C, N        dilation    stride    1

The forms are told apart by two marks in the parameters: `lhs_dilation` above 1 stands for strides
that are undone, and a `lhs` whose features (C) come before its batch (N) in memory for a sum over
the batch. The marks are what counts, not who wrote them: a transposed convolution is an input
gradient as well. Each form is an identity between sums, so a wrong guess costs time, not
correctness. With strides of 1, for one, an input gradient has no mark and runs as a forward
convolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from math import prod
from typing import Any

from convoy.cpu import kernel_support
from convoy.cpu.kernel_support import KERNELS
from jax import lax

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ConvolutionParameters:
    """The parameters of `lax.conv_general_dilated_p` that its result depends on."""

    window_strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    dimension_numbers: lax.ConvDimensionNumbers
    feature_group_count: int
    batch_group_count: int
    precision: lax.Precision | tuple[lax.Precision, lax.Precision] | None
    preferred_element_type: Any

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> ConvolutionParameters:
        return cls(**{field.name: parameters[field.name] for field in fields(cls)})

    @property
    def crops(self) -> bool:
        """Whether negative padding cuts off a part of the left operand."""
        return any(end < 0 for ends in self.padding for end in ends)

    @property
    def options(self) -> frozenset[str]:
        """Names of the parameters that differ from a plain convolution, as in `kernel_support`."""
        values = {
            kernel_support.STRIDES: self.window_strides,
            kernel_support.INPUT_DILATION: self.lhs_dilation,
            kernel_support.KERNEL_DILATION: self.rhs_dilation,
            kernel_support.FEATURE_GROUPS: (self.feature_group_count,),
            kernel_support.BATCH_GROUPS: (self.batch_group_count,),
        }
        return frozenset(name for name, each in values.items() if any(n > 1 for n in each))

    @property
    def form(self) -> str:
        """Name of the form that the marks belong to, as in `kernel_support`."""
        batch, features = self.dimension_numbers.lhs_spec[:2]
        dilated = kernel_support.INPUT_DILATION in self.options
        if features < batch:
            return (
                kernel_support.TRANSPOSED_WEIGHT_GRADIENT
                if dilated
                else kernel_support.WEIGHT_GRADIENT
            )
        return kernel_support.INPUT_GRADIENT if dilated else kernel_support.FORWARD


class Kind(IntEnum):
    """oneDNN's kinds of convolution; the numbers are those of `native/convolution.h`."""

    FORWARD = 0
    BACKWARD_DATA = 1
    BACKWARD_WEIGHTS = 2
    INFERENCE = 3  # forward, with the operations that follow; see `fused_convolution.py`


@dataclass(frozen=True)
class Tensor:
    """Sizes and strides in oneDNN's order of axes, whatever the order in memory."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def view(cls, shape: Shape, axes: Sequence[int]) -> Tensor:
        """View a row-major array of `shape` with its `axes` in this order."""
        strides = tuple(prod(shape[axis + 1 :]) for axis in axes)
        return cls(tuple(shape[axis] for axis in axes), strides)

    def split(self, axis: int, groups: int) -> Tensor:
        """Split the outermost `groups` off an axis, and put them first."""
        size = self.sizes[axis] // groups
        sizes = (*self.sizes[:axis], size, *self.sizes[axis + 1 :])
        return Tensor((groups, *sizes), (size * self.strides[axis], *self.strides))


@dataclass(frozen=True)
class OneDnnConvolution:
    """A convolution in oneDNN's terms, and the parts that JAX's operands play in it.

    Attributes:
        kind: one of oneDNN's kinds.
        source: input of the convolution, or its gradient: batch, in, spatial.
        weights: out, in, spatial, with the groups in front if there are several.
        destination: output of the convolution, or its gradient: batch, out, spatial.
        strides: of the convolution, not of JAX's parameters.
        dilations: of its kernel.
        padding: before the first element; that behind the last one follows from the sizes.
        swap_operands: whether JAX's right operand is oneDNN's first.
        source_slice: the part of the source that is read; empty if it is all of it.
        reverse_rhs: axes of the right operand that are reversed before the call.
        reverse_result: axes of the result that are reversed after the call.
    """

    kind: Kind
    source: Tensor
    weights: Tensor
    destination: Tensor
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[int, ...]
    swap_operands: bool = False
    source_slice: tuple[slice, ...] = ()
    reverse_rhs: Sequence[int] = ()
    reverse_result: Sequence[int] = ()

    def is_strided_pointwise(self) -> bool:
        rank = len(self.strides)
        return prod(self.weights.sizes[-rank:]) == 1 and prod(self.strides) > 1

    def padding_after(self) -> tuple[int, ...]:
        # From the usual size of an output, solved for the padding behind the last element:
        #     out = (before + size + after - extent) / stride + 1
        # with `extent` the elements that a dilated kernel spans.
        rank = len(self.strides)
        return tuple(
            (out - 1) * stride + (kernel - 1) * dilation + 1 - size - before
            for out, stride, kernel, dilation, size, before in zip(
                self.destination.sizes[2:],
                self.strides,
                self.weights.sizes[-rank:],
                self.dilations,
                self.source.sizes[2:],
                self.padding,
                strict=True,
            )
        )


def recognise(
    lhs: Shape, rhs: Shape, out: Shape, parameters: ConvolutionParameters
) -> OneDnnConvolution | None:
    """Express a convolution between arrays of these shapes as oneDNN's; `None` if it is none."""
    form = parameters.form
    row = KERNELS[form]
    if 0 in (*lhs, *rhs, *out) or len(lhs) not in row.ranks:
        return None
    if not parameters.options <= row.options:
        return None
    convolution = _FORMS[form](lhs, rhs, out, parameters)
    found: OneDnnConvolution | None = convolution
    if form == kernel_support.WEIGHT_GRADIENT:
        found = _subsampled(convolution, lhs, _swap(parameters.dimension_numbers.lhs_spec))
    elif form == kernel_support.TRANSPOSED_WEIGHT_GRADIENT:
        found = _subsampled(convolution, rhs, _swap(parameters.dimension_numbers.rhs_spec))
    return found if found and min(found.padding, default=0) >= 0 else None


# `dimension_numbers` give, for each array of JAX, which of its axes are (batch, features, spatial)
# or, for the kernel, (out, in, spatial). This is oneDNN's order, so viewing an array with its
# numbers as axes is all that a layout takes. Where a gradient reads features as batch, `_swap`
# turns them back:
#
#     NHWC  x: numbers (0, 3, 1, 2)  ->  (N, C, H, W)
#     NHWC  x, as the lhs of a weight gradient: numbers (3, 0, 1, 2)  ->  swapped (0, 3, 1, 2)


def _forward(lhs: Shape, rhs: Shape, out: Shape, p: ConvolutionParameters) -> OneDnnConvolution:
    lhs_spec, rhs_spec, out_spec = p.dimension_numbers
    weights = Tensor.view(rhs, rhs_spec)
    if p.feature_group_count > 1:
        weights = weights.split(0, p.feature_group_count)
    return OneDnnConvolution(
        Kind.FORWARD,
        source=Tensor.view(lhs, lhs_spec),
        weights=weights,
        destination=Tensor.view(out, out_spec),
        strides=p.window_strides,
        dilations=p.rhs_dilation,
        padding=tuple(low for low, _ in p.padding),
    )


def _input_gradient(
    lhs: Shape, rhs: Shape, out: Shape, p: ConvolutionParameters
) -> OneDnnConvolution:
    # lhs = dy, rhs = w with its spatial axes reversed and in and out exchanged, out = dx.
    lhs_spec, rhs_spec, out_spec = p.dimension_numbers
    weights = Tensor.view(rhs, _swap(rhs_spec))
    if p.feature_group_count > 1:
        weights = weights.split(1, p.feature_group_count)
    kernel = [rhs[axis] for axis in rhs_spec[2:]]
    return OneDnnConvolution(
        Kind.BACKWARD_DATA,
        source=Tensor.view(out, out_spec),
        weights=weights,
        destination=Tensor.view(lhs, lhs_spec),
        strides=p.lhs_dilation,
        dilations=p.rhs_dilation,
        padding=_mirrored(kernel, p.rhs_dilation, p.padding),
        reverse_rhs=rhs_spec[2:],
    )


def _weight_gradient(
    lhs: Shape, rhs: Shape, out: Shape, p: ConvolutionParameters
) -> OneDnnConvolution:
    # lhs = x, rhs = dy, out = dw. The window of this convolution is all of dy: a step of it is a
    # tap of the kernel (so `window_strides` are the dilations), and neighbours in dy are as far
    # apart in x as the strides (so these are `rhs_dilation`).
    lhs_spec, rhs_spec, out_spec = p.dimension_numbers
    weights = Tensor.view(out, _swap(out_spec))
    if p.batch_group_count > 1:
        weights = weights.split(0, p.batch_group_count)
    return OneDnnConvolution(
        Kind.BACKWARD_WEIGHTS,
        source=Tensor.view(lhs, _swap(lhs_spec)),
        weights=weights,
        destination=Tensor.view(rhs, _swap(rhs_spec)),
        strides=p.rhs_dilation,
        dilations=p.window_strides,
        padding=tuple(low for low, _ in p.padding),
    )


def _transposed_weight_gradient(
    lhs: Shape, rhs: Shape, out: Shape, p: ConvolutionParameters
) -> OneDnnConvolution:
    # A transposed convolution runs backwards: what it is given is oneDNN's destination, and what
    # it returns the source. So the operands change places, and dw comes out reversed.
    lhs_spec, rhs_spec, out_spec = p.dimension_numbers
    kernel = [out[axis] for axis in out_spec[2:]]
    return OneDnnConvolution(
        Kind.BACKWARD_WEIGHTS,
        source=Tensor.view(rhs, _swap(rhs_spec)),
        weights=Tensor.view(out, out_spec),
        destination=Tensor.view(lhs, _swap(lhs_spec)),
        strides=p.lhs_dilation,
        dilations=p.window_strides,
        padding=_mirrored(kernel, p.window_strides, p.padding),
        swap_operands=True,
        reverse_result=out_spec[2:],
    )


_FORMS = {
    kernel_support.FORWARD: _forward,
    kernel_support.INPUT_GRADIENT: _input_gradient,
    kernel_support.WEIGHT_GRADIENT: _weight_gradient,
    kernel_support.TRANSPOSED_WEIGHT_GRADIENT: _transposed_weight_gradient,
}


def _subsampled(
    convolution: OneDnnConvolution, source: Shape, axes: Sequence[int]
) -> OneDnnConvolution | None:
    """Replace the strides of a kernel of one element by a slice of the source.

    For the gradient of such weights, oneDNN 3.2 does so itself, but reads memory that it has not
    written if the strides do not divide the source (`jit_1x1:avx2`).
    """
    if not convolution.is_strided_pointwise():
        return convolution
    if any(convolution.padding):
        return None
    rank = len(convolution.strides)
    window = [slice(None)] * (rank + 2)
    for axis, size, stride in zip(
        axes[2:], convolution.destination.sizes[2:], convolution.strides, strict=True
    ):
        window[axis] = slice(0, (size - 1) * stride + 1, stride)
    shape = tuple(
        len(range(*part.indices(size))) for size, part in zip(source, window, strict=True)
    )
    return replace(
        convolution,
        source=Tensor.view(shape, axes),
        strides=(1,) * rank,
        dilations=(1,) * rank,
        source_slice=tuple(window),
    )


def _swap(spec: Sequence[int]) -> tuple[int, ...]:
    return (spec[1], spec[0], *spec[2:])


def _mirrored(
    kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[tuple[int, int]]
) -> tuple[int, ...]:
    """Return the padding of the convolution whose reversed kernel slides over `padding`."""
    # Both kernels overlap the border together by one extent less one element.
    return tuple(
        (size - 1) * step - low
        for size, step, (low, _) in zip(kernel, dilation, padding, strict=True)
    )
