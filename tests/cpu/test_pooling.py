"""Every pooling has JAX's own value and gradient, whatever runs it."""

import jax
import numpy as np
import pytest
from convoy import cpu
from convoy.cpu import lowering
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jax import lax

from .reference import HALF_TYPES, compare, compare_in_half, normal, value_and_gradients

pytestmark = pytest.mark.integration


def max_pool(x, window, strides, padding):
    return lax.reduce_window(x, -np.inf, lax.max, window, strides, padding)


def average_pool(x, window, strides, padding):
    total = lax.reduce_window(x, 0.0, lax.add, window, strides, padding)
    ones = np.ones(x.shape, np.float32)
    return total / lax.reduce_window(ones, 0.0, lax.add, window, strides, padding)


@st.composite
def poolings(draw):
    rank = draw(st.integers(1, 3))

    def each(values):
        return draw(st.lists(values, min_size=rank, max_size=rank))

    window = each(st.integers(1, 3))
    size = [w + extra for w, extra in zip(window, each(st.integers(0, 6)), strict=True)]
    channels = draw(st.sampled_from([1, 4, 7, 64, 65, 130]))
    shape = (draw(st.integers(1, 3)), *size, channels)
    padding = draw(st.sampled_from(["SAME", "VALID"]))
    return shape, (1, *window, 1), (1, *each(st.integers(1, 3)), 1), padding


@pytest.mark.parametrize("pool", [max_pool, average_pool])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(case=poolings())
def test_value_and_gradient_are_those_of_jax(pool, case):
    shape, *arguments = case
    compare(value_and_gradients(lambda x: pool(x, *arguments)), normal(shape))


def sum_pool(x, window, strides, padding):
    return lax.reduce_window(x, x.dtype.type(0), lax.add, window, strides, padding)


def half_max_pool(x, window, strides, padding):
    return lax.reduce_window(x, x.dtype.type(-np.inf), lax.max, window, strides, padding)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("pool", [half_max_pool, sum_pool])
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(case=poolings())
def test_in_half_precision_results_are_rounded_once(native, pool, dtype, case):
    shape, *arguments = case
    # With fewer channels XLA computes, which rounds after each addition.
    assume(shape[-1] >= 4 and max(arguments[0]) > 1)
    compare_in_half(value_and_gradients(lambda x: pool(x, *arguments)), dtype, normal(shape))


@pytest.mark.slow
@pytest.mark.parametrize("pool", [max_pool, average_pool])
@settings(max_examples=500, deadline=None)
@given(case=poolings())
def test_value_and_gradient_are_those_of_jax_at_length(pool, case):
    test_value_and_gradient_are_those_of_jax.hypothesis.inner_test(pool, case)


def test_a_tie_is_won_by_the_first_in_row_major_order():
    x = np.random.default_rng(0).integers(0, 3, (2, 9, 8, 8)).astype(np.float32)
    pool = value_and_gradients(lambda x: max_pool(x, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"))
    compare(pool, x)


@pytest.mark.parametrize("shape", [(2, 4, 6, 4, 65), (2, 5, 6, 4, 65)], ids=["tiles", "and a rest"])
def test_windows_that_do_not_overlap(shape):
    x = np.random.default_rng(0).integers(0, 3, shape).astype(np.float32)
    window = 1, 2, 3, 2, 1
    compare(value_and_gradients(lambda x: max_pool(x, window, window, "VALID")), x)


def test_channels_first_and_dilated_windows():
    compare(
        value_and_gradients(lambda x: max_pool(x, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")),
        normal((2, 8, 6, 6)),
    )
    compare(
        lambda x: lax.reduce_window(
            x, -np.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID", window_dilation=(1, 2, 3, 1)
        ),
        normal((2, 8, 8, 8)),
    )
    compare(
        lambda x: lax.reduce_window(
            x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID", base_dilation=(1, 2, 1, 1)
        ),
        normal((2, 8, 8, 8)),
    )


def test_not_a_number_stays():
    x = normal((1, 6, 6, 8))
    x[0, 2, 3, ::2] = np.nan
    got = jax.jit(lambda x: max_pool(x, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"))(x)
    assert np.isnan(got[0, 1:4, 2:5, ::2]).all()
    assert not np.isnan(got[..., 1::2]).any()


def test_pooling_and_its_gradient_are_native(native):
    lowering.reset_counts()
    pool = value_and_gradients(lambda x: max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
    jax.jit(pool).lower(normal((2, 8, 8, 8)))
    assert cpu.status().lowered == {"max pool": 1, "max pool gradient": 1}


def test_other_types_are_left_to_xla():
    x = np.arange(2 * 4 * 4 * 8).reshape(2, 4, 4, 8)
    compare(lambda x: lax.reduce_window(x, 0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), x)
