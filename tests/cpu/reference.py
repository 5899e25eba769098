"""JAX's own results, to compare with."""

from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from convoy.cpu import lowering, registry
from jax import lax

# Sums are taken in another order, and each is of up to some thousand float32 products of order 1.
RTOL = 1e-4
ATOL = 1e-4


@contextmanager
def jax_alone():
    """Compile with JAX's own rules inside."""
    lowering.remove_all()
    try:
        yield
    finally:
        for primitive, rule in registry.RULES.items():
            lowering.install(primitive, rule)


def compare(function, *arguments):
    """Assert that `function` compiled with the kernels and without them gives the same."""
    with jax_alone():
        expected = jax.jit(lambda *a: function(*a))(*arguments)
    got = jax.jit(lambda *a: function(*a))(*arguments)
    jax.tree.map(assert_close, got, expected)
    return got


# Largest error of rounding to the nearest number, relative to the number; the numbers below the
# smallest normal one are as far apart as those above it.
UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
SMALLEST_NORMAL = {"bfloat16": 2.0**-126, "float16": 2.0**-14}
HALF_TYPES = tuple(UNIT_ROUNDOFF)


def assert_close(got, expected):
    assert got.dtype == expected.dtype
    dtype = got.dtype.name
    got, expected = (np.asarray(array, np.float64) for array in (got, expected))
    largest = float(np.max(np.abs(expected), initial=0))
    if dtype in UNIT_ROUNDOFF:
        # A few operations, each of which may round to the other neighbour.
        atol = 8 * UNIT_ROUNDOFF[dtype] * largest
        np.testing.assert_allclose(got, expected, rtol=0, atol=atol)
    else:
        np.testing.assert_allclose(got, expected, rtol=RTOL, atol=ATOL * max(1.0, largest))


def assert_rounded_once(got, expected):
    """Assert that 16-bit numbers are float32 ones after one rounding.

    Sums in float32 may be taken in another order, as in `assert_close`.
    """
    name = got.dtype.name
    got, expected = (np.asarray(array, np.float64) for array in (got, expected))
    sizes = np.abs(expected)
    error = RTOL * max(1.0, float(np.max(sizes, initial=0)))
    error = error / 10 + UNIT_ROUNDOFF[name] * np.maximum(sizes, SMALLEST_NORMAL[name])
    np.testing.assert_array_less(np.abs(got - expected), error)


def compare_in_half(function, dtype, *arguments):
    """Assert that `function` of 16-bit arrays is that of the same numbers in float32, rounded once.

    The function must round nothing but its results: it is one operation, or a gradient of one.
    """
    half = [jnp.asarray(array, dtype) for array in arguments]
    with jax_alone():
        expected = jax.jit(lambda *a: function(*a))(*(a.astype(np.float32) for a in half))
    got = jax.jit(lambda *a: function(*a))(*half)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(got)} == {dtype}
    jax.tree.map(assert_rounded_once, got, expected)
    return got


def convolve_by_taps(x, w, window_strides, padding, rhs_dilation, feature_group_count, layout):
    """Convolve without a convolution: one product for each element of the kernel.

    Some gradients end XLA's compiler (jaxlib 0.10.2, a failed check in `algebraic_simplifier.cc`),
    so JAX's own convolutions are no reference for shapes drawn in their thousands.
    """
    lhs, rhs, out = lax.conv_dimension_numbers(x.shape, w.shape, layout)
    groups = feature_group_count
    x = lax.transpose(x, (lhs[0], *lhs[2:], lhs[1]))
    w = lax.transpose(w, (*rhs[2:], rhs[1], rhs[0]))
    batch, *size, features = x.shape
    *kernel, inputs, outputs = w.shape
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, rhs_dilation, strict=True)]
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(size, extent, window_strides, padding)
    x = jnp.pad(x, [(0, 0), *padding, (0, 0)])
    counts = [
        (n - e) // s + 1 for n, e, s in zip(x.shape[1:-1], extent, window_strides, strict=True)
    ]
    total = 0
    for tap in np.ndindex(*kernel):
        starts = [t * d for t, d in zip(tap, rhs_dilation, strict=True)]
        ends = [b + (n - 1) * s + 1 for b, n, s in zip(starts, counts, window_strides, strict=True)]
        part = lax.slice(
            x, (0, *starts, 0), (batch, *ends, features), (1, *window_strides, 1)
        ).reshape(batch, *counts, groups, inputs)
        weights = w[tap].reshape(inputs, groups, outputs // groups)
        total += jnp.einsum("...gi,igo->...go", part, weights)
    total = total.reshape(batch, *counts, outputs)
    ends_at = (out[0], *out[2:], out[1])
    return lax.transpose(total, sorted(range(total.ndim), key=ends_at.__getitem__))


def value_and_gradients(function):
    """Give `function`'s value and what its vector-Jacobian product makes of a fixed cotangent."""

    def both(*arguments):
        value, pull_back = jax.vjp(function, *arguments)
        # Numbers that float16 and bfloat16 hold exactly, so that it is the same in every type.
        numbers = lax.round(16 * lax.cos(lax.iota(np.float32, value.size))) / 16
        cotangent = numbers.astype(value.dtype).reshape(value.shape)
        return value, pull_back(cotangent)

    return both


def normal(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)
