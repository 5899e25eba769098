"""The table of CPU kernels: the types and forms that each one takes, and the CPU features it needs.

Lowering rules and fusions consult the table before they use a kernel, and nothing else decides by
type. A kernel for a further type is a further entry in its row. `native/execution.cc` chooses
between the implementations of a convolution by size; a test compares their rows with its choice.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Flag, auto
from types import MappingProxyType
from typing import Protocol

import numpy as np


class CpuFeature(Flag):
    """Instructions that not every CPU has."""

    NONE = 0
    AVX2 = auto()
    """AVX2 with FMA, on a CPU that runs a 256-bit instruction in one step."""
    BFLOAT16 = auto()
    """AVX-512 with bfloat16."""
    FLOAT16 = auto()
    """AVX-512 with float16."""


class Array(Protocol):
    """The type and rank of an array, with or without values."""

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def ndim(self) -> int: ...


@dataclass(frozen=True)
class Kernel:
    """A row of the table.

    Attributes:
        dtypes: element types, and the CPU features that each needs. All arrays of a call have the
            same type.
        ranks: numbers of axes of the operands, with those of batch and channels.
        options: parameters of `lax.conv_general_dilated` that may differ from a plain convolution.
        min_channels: minimum number of channels that lie next to each other in memory.
        superseded: element types for which another kernel is faster on a CPU with these features.
    """

    dtypes: Mapping[str, CpuFeature]
    ranks: range
    options: frozenset[str] = frozenset()
    min_channels: int = 1
    superseded: Mapping[str, CpuFeature] = field(default_factory=dict)

    def takes(self, features: CpuFeature, *arrays: Array) -> bool:
        """Return whether a CPU with these features can run the kernel on these arrays."""
        dtype = arrays[0].dtype
        needed, other = self.dtypes.get(dtype.name), self.superseded.get(dtype.name)
        return (
            needed is not None
            and needed in features
            and (other is None or other not in features)
            and all(array.dtype == dtype for array in arrays)
            and arrays[0].ndim in self.ranks
        )


# oneDNN's numbers for the types.
ONEDNN_TYPES = MappingProxyType({"float16": 1, "bfloat16": 2, "float32": 3})

FLOAT32 = MappingProxyType({"float32": CpuFeature.NONE})
# All kernels compute in float32, so 16-bit types need no special instructions.
ALL_FLOATS = MappingProxyType(dict.fromkeys(("float32", "bfloat16", "float16"), CpuFeature.NONE))
ALL_FLOATS_AVX2 = MappingProxyType(dict.fromkeys(ALL_FLOATS, CpuFeature.AVX2))
HALF_FLOATS = MappingProxyType(dict.fromkeys(("bfloat16", "float16"), CpuFeature.NONE))
FLOAT32_AVX2 = MappingProxyType({"float32": CpuFeature.AVX2})
# The instructions with which oneDNN computes in 16 bits.
INSTRUCTIONS = MappingProxyType({"bfloat16": CpuFeature.BFLOAT16, "float16": CpuFeature.FLOAT16})
# XLA has its fast convolution, Eigen's, for these two types only.
XLA_FLOATS = MappingProxyType(FLOAT32 | {"float16": CpuFeature.NONE})

# One to three spatial axes, with those of batch and channels.
CONVOLUTION_RANKS = range(3, 6)

STRIDES, INPUT_DILATION, KERNEL_DILATION = "window_strides", "lhs_dilation", "rhs_dilation"
FEATURE_GROUPS, BATCH_GROUPS = "feature_group_count", "batch_group_count"

FORWARD = "convolution, forward"
INPUT_GRADIENT = "convolution, input gradient"
WEIGHT_GRADIENT = "convolution, weight gradient"
TRANSPOSED_WEIGHT_GRADIENT = "convolution, weight gradient of a transposed convolution"
FUSED = "fused convolution"
FOLDED = "folded convolution"
XLA = "convolution by XLA, in its fast layout"
WINOGRAD = "winograd"
DIRECT = "direct"
MAX_POOL, SUM_POOL, MAX_POOL_GRADIENT = "max pool", "sum pool", "max pool gradient"
BATCH_NORMALIZATION = "batch normalisation"
CHANNEL_SUMS = "sums by channel"
MATRIX_PRODUCT = "matrix product"

_ALL_OPTIONS = frozenset({STRIDES, INPUT_DILATION, KERNEL_DILATION, FEATURE_GROUPS, BATCH_GROUPS})
_FORWARD_OPTIONS = frozenset({STRIDES, KERNEL_DILATION, FEATURE_GROUPS})
_POOLING = Kernel(ALL_FLOATS, range(1, sys.maxsize), min_channels=4)

KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        # The forms in which JAX writes a convolution and its gradients; see `convolution.py`.
        FORWARD: Kernel(ALL_FLOATS, CONVOLUTION_RANKS, _FORWARD_OPTIONS),
        INPUT_GRADIENT: Kernel(
            ALL_FLOATS, CONVOLUTION_RANKS, _ALL_OPTIONS - {STRIDES, BATCH_GROUPS}
        ),
        WEIGHT_GRADIENT: Kernel(
            ALL_FLOATS, CONVOLUTION_RANKS, _ALL_OPTIONS - {INPUT_DILATION, FEATURE_GROUPS}
        ),
        TRANSPOSED_WEIGHT_GRADIENT: Kernel(
            ALL_FLOATS, CONVOLUTION_RANKS, frozenset({STRIDES, INPUT_DILATION})
        ),
        # A convolution of inference, with packed weights and what follows it in one call.
        FUSED: Kernel(ALL_FLOATS, CONVOLUTION_RANKS, _FORWARD_OPTIONS),
        # Batch normalisation multiplied into weights: in 16 bits the product would be rounded.
        FOLDED: Kernel(FLOAT32, range(2, sys.maxsize), _ALL_OPTIONS),
        # XLA's kernels, without the native library.
        XLA: Kernel(XLA_FLOATS, CONVOLUTION_RANKS, _ALL_OPTIONS),
        # Implementations other than oneDNN's: 3x3 kernels, and products of inference.
        WINOGRAD: Kernel(ALL_FLOATS_AVX2, range(4, 5), superseded=INSTRUCTIONS),
        DIRECT: Kernel(FLOAT32_AVX2, CONVOLUTION_RANKS, frozenset({STRIDES, KERNEL_DILATION})),
        MAX_POOL: _POOLING,
        SUM_POOL: _POOLING,
        MAX_POOL_GRADIENT: _POOLING,
        BATCH_NORMALIZATION: Kernel(ALL_FLOATS, range(2, sys.maxsize)),
        # The gradient of a bias, channels last. In float32 XLA's own sum is as fast, and fuses the
        # operation before it.
        CHANNEL_SUMS: Kernel(HALF_FLOATS, range(2, sys.maxsize)),
        # XLA computes products in float32, and converts operands in 16 bits to it. In float32, only
        # products of few rows are native.
        MATRIX_PRODUCT: Kernel(FLOAT32 | INSTRUCTIONS, range(1, sys.maxsize)),
    }
)
