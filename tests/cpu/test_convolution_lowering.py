"""Every convolution has JAX's own value and gradients, whatever runs it."""

import jax
import numpy as np
import pytest
from convoy import cpu
from convoy.cpu import lowering
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from .reference import (
    HALF_TYPES,
    assert_close,
    compare,
    compare_in_half,
    convolve_by_taps,
    jax_alone,
    normal,
    value_and_gradients,
)

pytestmark = pytest.mark.integration

LAYOUTS = {
    1: [("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW")],
    2: [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NHWC", "OHWI", "NCHW")],
    3: [("NDHWC", "DHWIO", "NDHWC"), ("NCDHW", "OIDHW", "NCDHW")],
}


@st.composite
def convolutions(draw):
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    small = st.integers(1, 3)
    groups = draw(st.sampled_from([1, 1, 1, 2, 4]))
    depthwise = groups > 1 and draw(st.booleans())
    group_in = 1 if depthwise else draw(st.integers(1, 9))
    group_out = draw(st.integers(1, 2)) if depthwise else draw(st.integers(1, 9))
    kernel = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    dilation = draw(st.lists(st.sampled_from([1, 1, 1, 2]), min_size=rank, max_size=rank))
    strides = draw(st.lists(small, min_size=rank, max_size=rank))
    # More padding than the kernel covers has a test of its own: JAX alone gets its gradient wrong.
    covered = [st.integers(0, (k - 1) * d) for k, d in zip(kernel, dilation, strict=True)]
    padding = draw(
        st.one_of(
            st.sampled_from(["SAME", "VALID", "SAME_LOWER"]),
            st.tuples(*(st.tuples(ends, ends) for ends in covered)),
        )
    )
    extra = draw(st.lists(st.integers(0, 8), min_size=rank, max_size=rank))
    size = [(k - 1) * d + 1 + e for k, d, e in zip(kernel, dilation, extra, strict=True)]
    return {
        "batch": draw(st.integers(1, 5)),
        "features": (groups * group_in, group_in, groups * group_out),
        "spatial": (size, kernel),
        "layout": draw(st.sampled_from(LAYOUTS[rank])),
        "arguments": {
            "window_strides": strides,
            "padding": padding,
            "rhs_dilation": dilation,
            "feature_group_count": groups,
        },
    }


def shape(layout, batch, features, spatial):
    places = dict(zip("DHW"[-len(spatial) :], spatial, strict=True))
    return tuple(places.get(axis) or (batch if axis in "NO" else features) for axis in layout)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(convolutions())
def test_value_and_gradients_are_those_of_jax(case):
    inputs, group_inputs, outputs = case["features"]
    size, kernel = case["spatial"]
    x = normal(shape(case["layout"][0], case["batch"], inputs, size))
    w = normal(shape(case["layout"][1], outputs, group_inputs, kernel), seed=1)

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, dimension_numbers=case["layout"], **case["arguments"])

    compare(value_and_gradients(convolve), x, w)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(convolutions())
def test_value_and_gradients_are_those_of_single_products(case):
    inputs, group_inputs, outputs = case["features"]
    size, kernel = case["spatial"]
    x = normal(shape(case["layout"][0], case["batch"], inputs, size))
    w = normal(shape(case["layout"][1], outputs, group_inputs, kernel), seed=1)

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, dimension_numbers=case["layout"], **case["arguments"])

    def by_taps(x, w):
        return convolve_by_taps(x, w, layout=case["layout"], **case["arguments"])

    expected = jax.jit(value_and_gradients(by_taps))(x, w)
    got = jax.jit(value_and_gradients(convolve))(x, w)
    jax.tree.map(assert_close, got, expected)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    channels=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    padding=st.sampled_from(["SAME", "VALID"]),
    transpose_kernel=st.booleans(),
)
def test_transposed_convolution(kernel, stride, dilation, channels, padding, transpose_kernel):
    inputs, outputs = channels
    ends = (outputs, inputs) if transpose_kernel else (inputs, outputs)
    x, w = normal((2, 6, 5, inputs)), normal((kernel, kernel, *ends), seed=1)

    def convolve(x, w):
        return lax.conv_transpose(
            x,
            w,
            (stride, stride),
            padding,
            rhs_dilation=(dilation, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            transpose_kernel=transpose_kernel,
        )

    compare(value_and_gradients(convolve), x, w)


@pytest.mark.parametrize("batch", [3, 24, 26, 31])
def test_a_batch_is_divided_among_threads(batch):
    x, w = normal((batch, 8, 8, 8)), normal((3, 3, 8, 16), seed=1)

    def convolve(x, w):
        return lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    compare(value_and_gradients(convolve), x, w)


@pytest.mark.parametrize("size", [9, 10, 11, 12])
@pytest.mark.parametrize("stride", [2, 3])
def test_strided_kernel_of_one_element(size, stride):
    x, w = normal((2, size, size, 8)), normal((1, 1, 8, 16), seed=1)

    def convolve(x, w):
        return lax.conv_general_dilated(
            x, w, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    compare(value_and_gradients(convolve), x, w)


def check_in_half(case, dtype):
    inputs, group_inputs, outputs = case["features"]
    size, kernel = case["spatial"]
    x = normal(shape(case["layout"][0], case["batch"], inputs, size))
    w = normal(shape(case["layout"][1], outputs, group_inputs, kernel), seed=1)

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, dimension_numbers=case["layout"], **case["arguments"])

    compare_in_half(value_and_gradients(convolve), dtype, x, w)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(case=convolutions())
def test_in_half_precision_results_are_rounded_once(dtype, case):
    check_in_half(case, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALF_TYPES)
@settings(max_examples=250, deadline=None)
@given(case=convolutions())
def test_in_half_precision_results_are_rounded_once_at_length(dtype, case):
    check_in_half(case, dtype)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("batch", [2, 31])
def test_in_half_precision_a_batch_is_divided_among_threads(dtype, batch):
    x, w = normal((batch, 8, 8, 8)), normal((3, 3, 8, 16), seed=1)

    def convolve(x, w):
        return lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    compare_in_half(value_and_gradients(convolve), dtype, x, w)


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_in_half_precision_a_transposed_convolution_is_rounded_once(dtype):
    x, w = normal((2, 6, 5, 4)), normal((3, 3, 4, 6), seed=1)

    def convolve(x, w):
        return lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    compare_in_half(value_and_gradients(convolve), dtype, x, w)


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_every_form_has_a_kernel_in_half_precision(native, dtype):
    x, w = normal((4, 8, 8, 8)).astype(dtype), normal((3, 3, 8, 16), seed=1).astype(dtype)

    def convolve(x, w):
        return lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    lowering.reset_counts()
    jax.jit(value_and_gradients(convolve)).lower(x, w)
    family = "oneDNN" if dtype in cpu.status().half_instructions else "oneDNN in float32"
    kinds = ("backward data", "backward weights", "forward")
    assert cpu.status().lowered == {f"convolution by {family}, {kind}": 1 for kind in kinds}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_keeps_its_type(dtype):
    x, w = normal((2, 8, 8, 16)), normal((3, 3, 16, 8), seed=1) / 12

    def convolve(x, w):
        x, w = (lax.convert_element_type(v, dtype) for v in (x, w))
        out = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        assert out.dtype == dtype
        return lax.convert_element_type(out, np.float32)

    cpu.disable()
    expected = jax.jit(convolve)(x, w)
    cpu.enable()
    np.testing.assert_allclose(jax.jit(convolve)(x, w), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("padding", [((-1, 2), (1, -2)), ((3, 0), (2, 4)), ((-2, -1), (0, 3))])
def test_negative_padding_is_a_crop(padding):
    x, w = normal((2, 9, 9, 4)), normal((2, 3, 4, 5), seed=1)

    def convolve(x, w, padding=padding):
        return lax.conv_general_dilated(
            x, w, (1, 2), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def pad_then_convolve(x, w):
        padded = lax.pad(
            x, np.float32(0), [(0, 0, 0), *((*ends, 0) for ends in padding), (0, 0, 0)]
        )
        return convolve(padded, w, padding="VALID")

    got = jax.jit(value_and_gradients(convolve))(x, w)
    with jax_alone():
        expected = jax.jit(value_and_gradients(pad_then_convolve))(x, w)
    jax.tree.map(assert_close, got, expected)


def test_empty_operands_and_no_spatial_axes():
    compare(
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        normal((0, 5, 5, 2)),
        normal((3, 3, 2, 4)),
    )
    compare(
        lambda x, w: lax.conv_general_dilated(x, w, (), (), dimension_numbers=("NC", "IO", "NC")),
        normal((3, 2)),
        normal((2, 4)),
    )


def test_each_form_of_a_keras_layer_is_one_onednn_primitive(native):
    x, w = normal((4, 8, 8, 8)), normal((3, 3, 8, 16), seed=1)

    def convolve(x, w):
        return lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    lowering.reset_counts()
    jax.jit(value_and_gradients(convolve)).lower(x, w)
    assert cpu.status().lowered == {
        "convolution by oneDNN, backward data": 1,
        "convolution by oneDNN, backward weights": 1,
        "convolution by oneDNN, forward": 1,
    }
