"""The kernels of batch normalisation against the same written in JAX's own operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.cpu.batch_normalization import Operands, moments, normalize

from .reference import HALF_TYPES, assert_rounded_once

pytestmark = [pytest.mark.usefixtures("native"), pytest.mark.integration]

EPSILON = 1e-3
# Sums over thousands of float32 numbers, taken in another order than XLA takes them.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}

SHAPES = [
    (1, 1, 1, 1),  # a single number
    (5, 3),  # after a dense layer
    (4, 5, 6, 3),  # fewer channels than a vector register holds
    (2, 7, 7, 64),
    (3, 9, 9, 257),  # a row longer than a tile, and odd
    (2, 3, 4, 5, 6),  # volumes
    (9, 33, 31, 16),  # more rows than fit the cache, not a multiple of anything
    (2, 5, 5, 2100),
]


def reference(x, scale, offset, addend, relu):
    axes = tuple(range(x.ndim - 1))
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    scale, offset = (jnp.expand_dims(value, axes) for value in (scale, offset))
    y = (x - mean) * jax.lax.rsqrt(variance + EPSILON) * scale + offset
    y = y if addend is None else y + addend
    return jnp.where(y > 0, y, 0) if relu else y


def kernel(x, scale, offset, addend, relu):
    mean, variance = jax.lax.stop_gradient(moments(x))
    operands = Operands(x, mean, variance, scale, offset, addend)
    return normalize(operands, EPSILON, relu)


@pytest.fixture
def draw(rng):
    return lambda *shape: jnp.asarray(rng.normal(size=shape), "float32")


@pytest.mark.parametrize("shape", SHAPES)
def test_moments(draw, shape):
    x = 3 * draw(*shape) + 2
    axes = tuple(range(x.ndim - 1))
    mean, variance = jax.jit(moments)(x)
    np.testing.assert_allclose(mean, x.mean(axes), **TOLERANCE)
    np.testing.assert_allclose(variance, x.var(axes), **TOLERANCE)


def test_moments_of_a_narrow_spread_around_a_large_mean(draw):
    x = 1000 + 0.01 * draw(64, 32, 32, 8)
    expected = np.asarray(x, "float64").var((0, 1, 2))
    np.testing.assert_allclose(jax.jit(moments)(x)[1], expected, rtol=1e-4)


def test_gradient_of_moments(draw):
    x, weight = draw(3, 4, 5, 6), draw(2, 6)

    def loss(function):
        return jax.grad(lambda x: (jnp.stack(function(x)) * weight).sum())(x)

    expected = loss(lambda x: (x.mean((0, 1, 2)), x.var((0, 1, 2))))
    np.testing.assert_allclose(loss(moments), expected, **TOLERANCE)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_value_and_gradients(draw, shape, adds, relu):
    channels = shape[-1]
    operands = (draw(*shape), 1 + 0.5 * draw(channels), draw(channels))
    addend = (draw(*shape),) if adds else ()
    weight = draw(*shape)

    def run(function):
        def loss(*args):
            x, scale, offset, *rest = args
            y = function(x, scale, offset, rest[0] if rest else None, relu)
            return (y * weight).sum() / weight.size, y

        arguments = tuple(range(3 + len(addend)))
        gradient = jax.jit(jax.grad(loss, argnums=arguments, has_aux=True))
        return gradient(*operands, *addend)

    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, **TOLERANCE),
        run(kernel),
        run(reference),
    )


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("shape", [(4, 5, 6, 3), (3, 9, 9, 257), (9, 33, 31, 16)])
def test_in_half_precision_results_are_rounded_once(draw, shape, adds, dtype):
    channels = shape[-1]
    x, dy, addend = (draw(*shape).astype(dtype) for _ in range(3))
    by_channel = (1 + 0.5 * draw(channels), draw(channels))

    def run(function, *arrays):
        x, dy, *addend = arrays

        def forward(x, scale, offset, addend):
            return function(x, scale, offset, addend, True)

        y, pull_back = jax.vjp(forward, x, *by_channel, addend[0] if adds else None)
        return y, pull_back(dy)

    arrays = (x, dy, addend) if adds else (x, dy)
    y, (dx, *by_channel_gradients, d_addend) = jax.jit(lambda *a: run(kernel, *a))(*arrays)
    wide = [array.astype(np.float32) for array in arrays]
    exact, (exact_dx, *exact_gradients, exact_addend) = jax.jit(lambda *a: run(reference, *a))(
        *wide
    )
    for got, expected in [(y, exact), (dx, exact_dx), (d_addend, exact_addend)]:
        if got is not None:
            assert got.dtype == dtype
            assert_rounded_once(got, expected)
    for got, expected in zip(by_channel_gradients, exact_gradients, strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def without_subnormals(x):
    """Return float32 numbers as XLA's threads see them: subnormal ones are zero."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x)


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_every_number_of_a_half_type_is_read_and_rounded_as_numpy_does(dtype):
    numbers = np.arange(2**16, dtype=np.uint16).view(jnp.dtype(dtype))
    # Odd lengths: also the numbers at the end of a vector, which are converted one by one.
    channels = 7
    x = np.resize(numbers, (-(-numbers.size // channels), channels))
    zeros, ones = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    @jax.jit
    def times(x, scale):
        return normalize(Operands(x, zeros, ones, scale, zeros), 0.0, False)

    for factor in (1.0, 0.3, 1 / 3, 2.0**-9, 3.0e4):
        scale = np.full(channels, factor, np.float32)
        got = np.asarray(times(x, scale)).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            product = without_subnormals(without_subnormals(x.astype(np.float32)) * scale)
            expected = product.astype(x.dtype).astype(np.float32)
        np.testing.assert_array_equal(got, expected)


def test_runs_on_every_element_of_a_mapped_axis(draw):
    x = draw(3, 4, 5, 6)
    mean, _ = jax.vmap(moments)(x)
    np.testing.assert_allclose(mean, x.mean((1, 2)), **TOLERANCE)


def test_what_is_not_a_number_is_not_hidden(draw):
    x = draw(4, 4, 4, 8).at[0, 0, 0, 3].set(jnp.nan)
    y = jax.jit(lambda x: kernel(x, jnp.ones(8), jnp.zeros(8), None, True))(x)
    assert np.isnan(y[..., 3]).all()
    assert not np.isnan(y[..., :3]).any()
