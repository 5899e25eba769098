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


def assert_close(got, expected):
    assert got.dtype == expected.dtype
    scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
    np.testing.assert_allclose(got, expected, rtol=RTOL, atol=ATOL * scale)


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
        cotangent = lax.cos(lax.iota(value.dtype, value.size)).reshape(value.shape)
        return value, pull_back(cotangent)

    return both


def normal(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)
