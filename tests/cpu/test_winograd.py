"""Convolutions of 3x3 by Winograd's method: the value, the gradients, and who takes it."""

import jax
import numpy as np
import pytest
from convoy import cpu
from convoy.cpu import lowering
from convoy.cpu.kernel_dtypes import CpuFeature
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from .reference import (
    HALF_TYPES,
    compare,
    compare_in_half,
    convolve_by_taps,
    normal,
    value_and_gradients,
)
from .test_inference_fusion import check, data, layers, model_of

pytestmark = pytest.mark.integration

METHOD = "convolution by Winograd's method"
# The gradient of the source is a forward convolution as well.
ALL_FORMS = {f"{METHOD}, backward weights": 1, f"{METHOD}, forward": 2}
LAYOUT = ("NHWC", "HWIO", "NHWC")


@pytest.fixture(autouse=True)
def _machine_takes_it(native):
    # oneDNN's own kernels are used where longer vectors are computed at once.
    if CpuFeature.AVX2 not in native.features:
        pytest.skip(f"Winograd's method is for AVX2; this machine has {native.instruction_set}")


def convolve(x, w, padding="SAME", layout=LAYOUT, strides=(1, 1)):
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=layout)


def lowered(function, *arguments):
    lowering.reset_counts()
    jax.jit(value_and_gradients(function)).lower(*arguments)
    return cpu.status().lowered


ends = st.tuples(st.integers(0, 2), st.integers(0, 2))


@st.composite
def cases(draw):
    batch, height, width = (
        draw(st.integers(1, 9)),
        draw(st.integers(3, 15)),
        draw(st.integers(3, 15)),
    )
    channels = st.sampled_from([16, 32, 48, 64])
    padding = draw(st.one_of(st.sampled_from(["SAME", "VALID"]), st.tuples(ends, ends)))
    return (batch, height, width), draw(channels), draw(channels), padding


def check_case(case):
    size, inputs, outputs, padding = case
    x, w = normal((*size, inputs)), normal((3, 3, inputs, outputs), seed=1)
    compare(value_and_gradients(lambda x, w: convolve(x, w, padding)), x, w)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(cases())
def test_value_and_gradients_are_those_of_jax(case):
    check_case(case)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(cases())
def test_value_and_gradients_are_those_of_jax_for_many_sizes(case):
    check_case(case)


def check_case_in_half(case, dtype):
    size, inputs, outputs, padding = case
    x, w = normal((*size, inputs)), normal((3, 3, inputs, outputs), seed=1)
    compare_in_half(value_and_gradients(lambda x, w: convolve(x, w, padding)), dtype, x, w)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@settings(max_examples=2, deadline=None, derandomize=True)
@given(case=cases())
def test_in_half_precision_results_are_rounded_once(dtype, case):
    check_case_in_half(case, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALF_TYPES)
@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_in_half_precision_results_are_rounded_once_for_many_sizes(dtype, case):
    check_case_in_half(case, dtype)


def test_all_three_forms_take_it():
    x, w = normal((4, 9, 9, 32)), normal((3, 3, 32, 48), seed=1)
    assert lowered(convolve, x, w) == ALL_FORMS


@pytest.mark.parametrize(
    ("size", "kernel", "options"),
    [
        ((4, 9, 9, 32), (3, 3, 32, 32), {"strides": (2, 2)}),
        ((4, 9, 9, 32), (5, 5, 32, 32), {}),
        ((4, 9, 9, 32), (3, 3, 32, 40), {}),
        ((1, 6, 6, 32), (3, 3, 32, 32), {}),
        ((4, 32, 9, 9), (3, 3, 32, 32), {"layout": ("NCHW", "HWIO", "NCHW")}),
    ],
    ids=["strides", "kernel", "channels", "few tiles", "channels first"],
)
def test_other_convolutions_are_left_to_onednn(size, kernel, options):
    counts = lowered(lambda x, w: convolve(x, w, **options), normal(size), normal(kernel, seed=1))
    assert not any(name.startswith(METHOD) for name in counts)


def test_weights_in_any_layout():
    x, w = normal((4, 9, 9, 32)), normal((48, 3, 3, 32), seed=1)

    def with_outputs_first(x, w):
        return convolve(x, w, layout=("NHWC", "OHWI", "NHWC"))

    assert lowered(with_outputs_first, x, w) == ALL_FORMS
    compare(value_and_gradients(with_outputs_first), x, w)


def test_it_is_as_exact_as_single_products():
    x, w = normal((4, 16, 16, 64)), normal((3, 3, 64, 64), seed=1)
    got = jax.jit(value_and_gradients(convolve))(x, w)
    with jax.enable_x64(True):
        exact = value_and_gradients(
            lambda x, w: convolve_by_taps(x, w, (1, 1), "SAME", (1, 1), 1, LAYOUT)
        )(x.astype(np.float64), w.astype(np.float64))
    # Sums of 576 and, for the weights, of 1024 products, each rounded to 2 ** -24.
    for value, reference in zip(jax.tree.leaves(got), jax.tree.leaves(exact), strict=True):
        scale = float(np.max(np.abs(reference)))
        np.testing.assert_allclose(value, reference, rtol=0, atol=1e-6 * scale)


def test_inference_with_all_that_follows():
    def build(x):
        x = layers.Conv2D(32, 1)(x)
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(32, 3, padding="same")(x)))
        y = layers.BatchNormalization()(layers.Conv2D(32, 3, padding="same", use_bias=False)(y))
        return layers.ReLU()(layers.Add()([x, y]))

    check(model_of((9, 7, 4), build), data(5, 9, 7, 4))
    assert lowering.counts() == {
        "convolution by direct products, inference": 1,
        f"{METHOD}, inference, addition, rectifier": 1,
        f"{METHOD}, inference, rectifier": 1,
    }


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [(1, 7, 7), (1, 9, 9), (1, 14, 14), (3, 11, 13)])
def test_threads_divide_tiles_or_weights(monkeypatch, threads, size):
    monkeypatch.setattr("convoy.cpu.threads.per_device", lambda: threads)

    def build(x):
        x = layers.Conv2D(128, 3, padding="same", activation="relu")(x)
        return layers.Conv2D(80, 3, padding="same")(x)

    lowering.reset_counts()
    check(model_of((*size[1:], 64), build), data(*size, 64))
    assert lowering.counts() == {f"{METHOD}, inference": 1, f"{METHOD}, inference, rectifier": 1}


def test_what_is_not_a_number_stays_so():
    x, w = normal((4, 8, 8, 32)), normal((3, 3, 32, 32), seed=1)
    x[1, 4, 4, 3] = np.nan
    result = np.asarray(jax.jit(convolve)(x, w))
    assert np.isnan(result[1, 3:6, 3:6]).all()
    assert np.isfinite(result[[0, 2, 3]]).all()
