"""The lowering rule of matrix products on CPUs: dense layers, attention and einsums.

In 16 bits, XLA converts the operands to float32. oneDNN uses the CPU's instructions for the type,
sums in float32, and rounds once. In float32, XLA is as fast, except for products of a few rows.

`lax.dot_general` names the axes of its operands that are batch, and those that are summed over. A
row-major array with its axes in another order is an array with other strides, and neighbouring
axes whose strides fit together are one axis. So most products are one of

    c[i, j, row, column] = sum over k of  a[i, j, row, k] * b[i, j, k, column]

without a copy of an operand:

    forward pass       x[rows, k]  w[k, columns]             ->  y[rows, columns]
    gradient of x      dy[rows, columns]  w[k, columns]      ->  dx[rows, k]
    gradient of w      dy[rows, columns]  x[rows, k]         ->  dw[columns, k], then transposed

The last one is computed with its columns first, so that the transposition needs no copy.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from convoy.cpu import library, lowering, threads
from convoy.cpu.kernel_dtypes import MATRIX_PRODUCT, ONEDNN_TYPES
from convoy.cpu.lowering import Results, Value
from jax import lax
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

# Smaller products take about as long as the call.
MIN_OPERATIONS = 1 << 16
# With fewer rows, columns or products to sum, vectors stay empty.
MIN_SIDE = 5
# XLA (jaxlib 0.10.2) fuses a chain of float32 products. With 5 to 8 rows, the fused chain takes 40
# times as long as the single products.
FEW_ROWS = range(5, 9)

BATCH_AXES = 2


class Axis(NamedTuple):
    """One axis of an array, or several as one: elements, and the step from one to the next."""

    size: int
    stride: int


class Product(NamedTuple):
    """A product in the form above: sizes, and strides of each array in the order of its indices."""

    batch: tuple[int, ...]
    rows: int
    inner: int
    columns: int
    strides: tuple[tuple[int, ...], ...]

    @property
    def operations(self) -> int:
        return prod(self.batch) * self.rows * self.inner * self.columns


def lower(
    ctx: mlir.LoweringRuleContext,
    lhs: Value,
    rhs: Value,
    *,
    dimension_numbers: lax.DotDimensionNumbers,
    **parameters: Any,
) -> Results:
    """Lower a product to the native kernel if it takes it, else as JAX does."""
    results = None
    if parameters.get("out_sharding") is None and not lowering.must_be_portable(ctx):
        results = _call_native(ctx, lhs, rhs, dimension_numbers)
    if results is not None:
        return results
    own = lowering.jax_rule(lax.dot_general_p)
    return own(ctx, lhs, rhs, dimension_numbers=dimension_numbers, **parameters)


def _call_native(
    ctx: mlir.LoweringRuleContext,
    lhs: Value,
    rhs: Value,
    dimension_numbers: lax.DotDimensionNumbers,
) -> Results | None:
    left, right, out = lowering.arrays(*ctx.avals_in, *ctx.avals_out)
    kernels = library.find_for(MATRIX_PRODUCT, left, right, out)
    if kernels is None or not lowering.is_on_one_device(ctx):
        return None
    transposed = is_weight_gradient(dimension_numbers)
    product = recognise(left.shape, right.shape, dimension_numbers, columns_first=transposed)
    if product is None or not _is_faster(product, out.dtype):
        return None
    description, count = describe(product, out.dtype), threads.per_device()
    if kernels.product_implementation(description, count) is None:
        return None
    lowering.count(MATRIX_PRODUCT)
    # A result with its columns first is transposed back. XLA removes this transposition together
    # with the one that follows it.
    rows = left.ndim - len(dimension_numbers[0][0])
    order = (*range(rows, out.ndim), *range(rows)) if transposed else tuple(range(out.ndim))
    results = jax.ffi.ffi_lowering("convoy_matrix_product")(
        ctx.replace(avals_out=[out.update(shape=tuple(out.shape[axis] for axis in order))]),
        lhs,
        rhs,
        description=description,
        threads=np.int64(count),
        own_core=threads.pinned(),
    )
    return [_transpose(results[0], np.argsort(order).tolist())] if transposed else results


def _is_faster(product: Product, dtype: np.dtype) -> bool:
    """Return whether the native kernel is faster than XLA."""
    if min(product.rows, product.inner, product.columns) < MIN_SIDE:
        return False
    if dtype == np.float32 and product.rows not in FEW_ROWS:
        return False
    return product.operations >= MIN_OPERATIONS


def _transpose(operand: Any, permutation: Sequence[int]) -> Value:
    return stablehlo.transpose(operand, mlir.dense_int_array(permutation))


def is_weight_gradient(numbers: lax.DotDimensionNumbers) -> bool:
    """Return whether both operands are summed over their first axes.

    Autodiff writes the gradient of weights in this form, and transposes it.
    """
    contracting, batch = numbers
    first = tuple(range(len(contracting[0])))
    return not batch[0] and all(tuple(sorted(axes)) == first for axes in contracting)


def recognise(
    lhs: Sequence[int],
    rhs: Sequence[int],
    numbers: lax.DotDimensionNumbers,
    *,
    columns_first: bool = False,
) -> Product | None:
    """Return a product of arrays of these shapes in the form of the kernel; `None` if it has none.

    Args:
        lhs: shape of the left operand.
        rhs: shape of the right operand.
        numbers: the axes that are summed over, and those of the batch.
        columns_first: whether the columns of the result come before its rows in memory.
    """
    if 0 in (*lhs, *rhs):
        return None
    (left_inner, right_inner), (left_batch, right_batch) = numbers
    left, right = _axes(lhs), _axes(rhs)
    rows = [axis for i, axis in enumerate(left) if i not in (*left_inner, *left_batch)]
    columns = [axis for i, axis in enumerate(right) if i not in (*right_inner, *right_batch)]
    # The order of a sum's axes does not matter, only that it is the same for both operands.
    order = sorted(range(len(left_inner)), key=lambda i: left_inner[i])
    inner = [(left[left_inner[i]], right[right_inner[i]]) for i in order]
    batch = [(left[i], right[j]) for i, j in zip(left_batch, right_batch, strict=True)]
    row, column = _merge([[axis] for axis in rows]), _merge([[axis] for axis in columns])
    inside, outside = _merge(inner, 2), _merge(batch, 2)
    if any(len(axes) > 1 for axes in (row, column, inside)) or len(outside) > BATCH_AXES:
        return None
    (rows_axis,), (columns_axis,), (inner_axes,) = row, column, inside
    one = [Axis(1, 1), Axis(1, 1)]
    padded = [*([one] * (BATCH_AXES - len(outside))), *outside]
    sizes = tuple(axes[0].size for axes in padded)
    m, k, n = rows_axis[0].size, inner_axes[0].size, columns_axis[0].size
    result = (1, m) if columns_first else (n, 1)
    matrix = m * n
    return Product(
        sizes,
        m,
        k,
        n,
        (
            (*(axes[0].stride for axes in padded), rows_axis[0].stride, inner_axes[0].stride),
            (*(axes[1].stride for axes in padded), inner_axes[1].stride, columns_axis[0].stride),
            (sizes[1] * matrix, matrix, *result),
        ),
    )


def _axes(shape: Sequence[int]) -> list[Axis]:
    """Return the axes of a row-major array."""
    return [Axis(size, prod(shape[i + 1 :])) for i, size in enumerate(shape)]


def _merge(axes: Sequence[Sequence[Axis]], arrays: int = 1) -> list[list[Axis]]:
    """Join neighbouring axes whose strides fit together in every array.

    Args:
        axes: descriptions of each axis, one for each of the arrays.
        arrays: number of arrays.
    """
    merged: list[list[Axis]] = []
    for axis in axes:
        if axis[0].size == 1:
            continue
        if merged and all(
            outer.stride == each.size * each.stride
            for outer, each in zip(merged[-1], axis, strict=True)
        ):
            merged[-1] = [
                Axis(outer.size * each.size, each.stride)
                for outer, each in zip(merged[-1], axis, strict=True)
            ]
        else:
            merged.append(list(axis))
    return merged or [[Axis(1, 1)] * arrays]


def describe(product: Product, dtype: np.dtype) -> np.ndarray:
    """Encode a product as `ProductShape::Parse` in `native/matrix_product.cc` reads it."""
    sizes = (*product.batch, product.rows, product.inner, product.columns)
    strides = [stride for array in product.strides for stride in array]
    return np.array([ONEDNN_TYPES[dtype.name], *sizes, *strides], np.int64)
