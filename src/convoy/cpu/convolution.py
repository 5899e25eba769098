"""Convolutions as JAX writes them, and which of oneDNN's three kinds each one is.

Autodiff turns a convolution into two more. The gradient for the input has its left operand dilated
by the strides and the weights reversed; the gradient for the weights has batch and features
swapped, with the strides as the right operand's dilation. Here they are recognised by these
marks, whoever wrote them: a transposed convolution, for one, is an input gradient that somebody
wanted for its own sake. Each is an identity between sums, so a mistaken guess costs time, not
correctness.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from math import prod
from typing import Any

from jax import lax


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
    precision: Any
    preferred_element_type: Any

    @property
    def crops(self) -> bool:
        """Whether part of the left operand is cut off by negative padding."""
        return any(end < 0 for ends in self.padding for end in ends)

    @classmethod
    def of(cls, parameters: dict[str, Any]) -> "ConvolutionParameters":
        return cls(**{field.name: parameters[field.name] for field in fields(cls)})


class Kind(IntEnum):
    """oneDNN's kinds of convolution; the numbers are those of `native/convolution.h`."""

    FORWARD = 0
    BACKWARD_DATA = 1
    BACKWARD_WEIGHTS = 2
    INFERENCE = 3  # forward, with what follows; see `inference.py`


@dataclass(frozen=True)
class Tensor:
    """Sizes and strides in oneDNN's order of axes, whatever the order in memory."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def view(cls, shape: tuple[int, ...], axes: Sequence[int]) -> "Tensor":
        """View a row-major array of `shape` with its `axes` in this order."""
        strides = tuple(prod(shape[axis + 1 :]) for axis in axes)
        return cls(tuple(shape[axis] for axis in axes), strides)

    def split(self, axis: int, groups: int) -> "Tensor":
        """Split `groups` off an axis that holds them outermost, and put them first."""
        size = self.sizes[axis] // groups
        sizes = (*self.sizes[:axis], size, *self.sizes[axis + 1 :])
        return Tensor((groups, *sizes), (size * self.strides[axis], *self.strides))


@dataclass(frozen=True)
class OneDnnConvolution:
    """A convolution in oneDNN's terms, and how JAX's operands take part in it."""

    kind: Kind
    source: Tensor
    weights: Tensor  # out, in, spatial, with the groups in front if there are any
    destination: Tensor
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[int, ...]  # before the first element; the other end follows from the sizes
    swap_operands: bool = False
    source_slice: tuple[slice, ...] = ()  # the part of the source that takes part, if not all
    reverse_rhs: Sequence[int] = ()  # these axes, before the call
    reverse_result: Sequence[int] = ()  # these axes, after it

    def is_strided_pointwise(self) -> bool:
        rank = len(self.strides)
        return prod(self.weights.sizes[-rank:]) == 1 and prod(self.strides) > 1

    def padding_after(self) -> tuple[int, ...]:
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


Shape = tuple[int, ...]


def recognise(
    lhs: Shape, rhs: Shape, out: Shape, parameters: ConvolutionParameters
) -> OneDnnConvolution | None:
    """Express a convolution between these shapes as one of oneDNN's, if it is one."""
    if 0 in (*lhs, *rhs, *out) or not 3 <= len(lhs) <= 5:
        return None
    batch, features = parameters.dimension_numbers.lhs_spec[:2]
    for_weights = features < batch
    dilated = any(d > 1 for d in parameters.lhs_dilation)
    if for_weights:
        found = (_transposed_weights if dilated else _weights)(lhs, rhs, out, parameters)
        if found and found.is_strided_pointwise():
            spec = parameters.dimension_numbers[1 if dilated else 0]
            found = _subsampled(found, rhs if dilated else lhs, _swap(spec))
    else:
        found = (_input if dilated else _forward)(lhs, rhs, out, parameters)
    return found if found and min(found.padding, default=0) >= 0 else None


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


def _input(
    lhs: Shape, rhs: Shape, out: Shape, p: ConvolutionParameters
) -> OneDnnConvolution | None:
    if any(s > 1 for s in p.window_strides):
        return None
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


def _weights(
    lhs: Shape, rhs: Shape, out: Shape, p: ConvolutionParameters
) -> OneDnnConvolution | None:
    if p.feature_group_count > 1:
        return None
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


def _transposed_weights(
    lhs: Shape, rhs: Shape, out: Shape, p: ConvolutionParameters
) -> OneDnnConvolution | None:
    """Recognise the weight gradient of a transposed convolution: the operands change places."""
    if p.feature_group_count * p.batch_group_count > 1 or any(d > 1 for d in p.rhs_dilation):
        return None
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


def _subsampled(
    convolution: OneDnnConvolution, source: Shape, axes: Sequence[int]
) -> OneDnnConvolution | None:
    """Take the positions that a strided kernel of one element touches, and stride no more.

    oneDNN 3.2 does so itself for the gradient of such weights, but reads memory it has not written
    when the strides do not divide the source (`jit_1x1:avx2`).
    """
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
    """Compute the padding of the convolution whose reversed kernel slides over `padding`."""
    return tuple(
        (size - 1) * step - low
        for size, step, (low, _) in zip(kernel, dilation, padding, strict=True)
    )
