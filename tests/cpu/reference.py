"""JAX's own results, to compare with."""

from contextlib import contextmanager

import jax
import numpy as np
from convoy.cpu import rules, switch
from jax import lax

# Sums are taken in another order, and each is of up to some thousand float32 products of order 1.
RTOL = 1e-4
ATOL = 1e-4


@contextmanager
def jax_alone():
    """Compile with JAX's own rules inside."""
    rules.remove_all()
    try:
        yield
    finally:
        for primitive, rule in switch.RULES.items():
            rules.install(primitive, rule)


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


def value_and_gradients(function):
    """Give `function`'s value and what its vector-Jacobian product makes of a fixed cotangent."""

    def both(*arguments):
        value, pull_back = jax.vjp(function, *arguments)
        cotangent = lax.cos(lax.iota(value.dtype, value.size)).reshape(value.shape)
        return value, pull_back(cotangent)

    return both


def normal(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)
