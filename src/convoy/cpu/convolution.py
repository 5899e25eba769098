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

Two marks in the parameters distinguish the forms. `lhs_dilation` above 1 means that strides are
undone. A `lhs` whose features (C) come before its batch (N) in memory means that the batch is
summed over. Only the marks matter, not how the convolution was written: a transposed convolution
also counts as an input gradient. Each form is an identity between sums, so a wrong guess costs
time, not correctness. For example, an input gradient with strides of 1 has no mark, and runs as a
forward convolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from math import prod
from typing import Any

from convoy.cpu import kernel_dtypes
from convoy.cpu.kernel_dtypes import KERNELS
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
        """Names of the parameters that differ from a plain convolution, as in `kernel_dtypes`."""
        values = {
            kernel_dtypes.STRIDES: self.window_strides,
            kernel_dtypes.INPUT_DILATION: self.lhs_dilation,
            kernel_dtypes.KERNEL_DILATION: self.rhs_dilation,
            kernel_dtypes.FEATURE_GROUPS: (self.feature_group_count,),
            kernel_dtypes.BATCH_GROUPS: (self.batch_group_count,),
        }
        return frozenset(name for name, each in values.items() if any(n > 1 for n in each))

    @property
    def form(self) -> str:
        """Name of the form that the marks belong to, as in `kernel_dtypes`."""
        batch, features = self.dimension_numbers.lhs_spec[:2]
        dilated = kernel_dtypes.INPUT_DILATION in self.options
        if features < batch:
            return (
                kernel_dtypes.TRANSPOSED_WEIGHT_GRADIENT
                if dilated
                else kernel_dtypes.WEIGHT_GRADIENT
            )
        return kernel_dtypes.INPUT_GRADIENT if dilated else kernel_dtypes.FORWARD


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
    """A convolution in oneDNN's terms, and the roles of JAX's operands in it.

    Attributes:
        kind: one of oneDNN's kinds.
        source: input of the convolution, or its gradient: batch, in, spatial.
        weights: kernel of the convolution: out, in, spatial, preceded by the groups if there are
            several.
        destination: output of the convolution, or its gradient: batch, out, spatial.
        strides: strides of this convolution, which may differ from those in JAX's parameters.
        dilations: dilations of its kernel.
        padding: padding before the first element; the padding after the last one follows from the
            sizes.
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
        # The formula for the size of an output, solved for the padding after the last element:
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


@dataclass(frozen=True)
class _Form:
    """The arrays and parameters of oneDNN's convolution in one of JAX's forms.

    Attributes:
        kind: one of oneDNN's kinds.
        parts: JAX's arrays that are oneDNN's source, weights and destination.
        strides: JAX's parameter that holds the strides.
        dilations: JAX's parameter that holds the dilations.
        swapped: arrays whose first two axes JAX exchanges: batch and features, or out and in.
        mirrored: whether the kernel is reversed along its spatial axes.
        group_axis: axis of the weights that is divided into groups.
    """

    kind: Kind
    parts: tuple[str, str, str]
    strides: str
    dilations: str
    swapped: tuple[str, ...] = ()
    mirrored: bool = False
    group_axis: int = 0


_FORMS = {
    kernel_dtypes.FORWARD: _Form(
        Kind.FORWARD, ("lhs", "rhs", "out"), strides="window_strides", dilations="rhs_dilation"
    ),
    kernel_dtypes.INPUT_GRADIENT: _Form(
        Kind.BACKWARD_DATA,
        ("out", "rhs", "lhs"),
        strides="lhs_dilation",
        dilations="rhs_dilation",
        swapped=("rhs",),
        mirrored=True,
        group_axis=1,
    ),
    # The window of this convolution is all of dy: a step of it is a tap of the kernel (so
    # `window_strides` are the dilations), and neighbours in dy are as far apart in x as the strides
    # (so these are `rhs_dilation`).
    kernel_dtypes.WEIGHT_GRADIENT: _Form(
        Kind.BACKWARD_WEIGHTS,
        ("lhs", "out", "rhs"),
        strides="rhs_dilation",
        dilations="window_strides",
        swapped=("lhs", "rhs", "out"),
    ),
    # A transposed convolution runs backwards: its input is oneDNN's destination, and its output is
    # oneDNN's source. So the operands change places, and dw comes out reversed.
    kernel_dtypes.TRANSPOSED_WEIGHT_GRADIENT: _Form(
        Kind.BACKWARD_WEIGHTS,
        ("rhs", "out", "lhs"),
        strides="lhs_dilation",
        dilations="window_strides",
        swapped=("lhs", "rhs"),
        mirrored=True,
    ),
}


def recognise(
    lhs: Shape, rhs: Shape, out: Shape, parameters: ConvolutionParameters
) -> OneDnnConvolution | None:
    """Express a convolution between arrays of these shapes as one of oneDNN, or return `None`."""
    row, form = KERNELS[parameters.form], _FORMS[parameters.form]
    if 0 in (*lhs, *rhs, *out) or len(lhs) not in row.ranks:
        return None
    if not parameters.options <= row.options:
        return None
    # `dimension_numbers` list the axes of each array in the order (batch, features, spatial), or
    # (out, in, spatial) for the kernel. This is also oneDNN's order, so these numbers are the axes
    # of oneDNN's view of the array. A gradient reads features as batch; `swapped` exchanges the two
    # axes again:
    #
    #     NHWC  x: numbers (0, 3, 1, 2)  ->  (N, C, H, W)
    #     NHWC  x, as the lhs of a weight gradient: numbers (3, 0, 1, 2)  ->  swapped (0, 3, 1, 2)
    shapes = {"lhs": lhs, "rhs": rhs, "out": out}
    axes = dict(zip(shapes, parameters.dimension_numbers, strict=True))
    for array in form.swapped:
        first, second, *spatial = axes[array]
        axes[array] = (second, first, *spatial)
    source_array, weights_array, _ = form.parts
    source, weights, destination = (Tensor.view(shapes[array], axes[array]) for array in form.parts)
    dilations = getattr(parameters, form.dilations)
    padding = tuple(low for low, _ in parameters.padding)
    reversed_axes: Sequence[int] = ()
    if form.mirrored:
        # The padding of a mirrored kernel: the two paddings sum to the kernel's extent minus one.
        sizes = zip(weights.sizes[2:], dilations, padding, strict=True)
        padding = tuple((size - 1) * step - low for size, step, low in sizes)
        reversed_axes = axes[weights_array][2:]
    # A form has at most one of the two kinds of groups.
    groups = parameters.feature_group_count * parameters.batch_group_count
    convolution = OneDnnConvolution(
        form.kind,
        source=source,
        weights=weights.split(form.group_axis, groups) if groups > 1 else weights,
        destination=destination,
        strides=getattr(parameters, form.strides),
        dilations=dilations,
        padding=padding,
        swap_operands=source_array == "rhs",
        reverse_rhs=reversed_axes if weights_array == "rhs" else (),
        reverse_result=reversed_axes if weights_array == "out" else (),
    )
    if min(convolution.padding, default=0) < 0:
        return None
    if form.kind != Kind.BACKWARD_WEIGHTS:
        return convolution
    return _subsampled(convolution, shapes[source_array], axes[source_array])


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
