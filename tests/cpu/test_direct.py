"""Convolutions of inference by direct products: any window, any padding, any rank."""

import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from convoy.cpu.convolution import ConvolutionParameters
from convoy.cpu.fused_convolution import FusedConvolution
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from .reference import assert_close, jax_alone, normal
from .test_winograd import _machine_takes_it  # noqa: F401 - a fixture

LAYOUTS = {
    1: ("NWC", "WIO", "NWC"),
    2: ("NHWC", "HWIO", "NHWC"),
    3: ("NDHWC", "DHWIO", "NDHWC"),
}


@st.composite
def cases(draw):
    rank = draw(st.sampled_from([1, 2, 2, 3]))

    def for_each_axis(values):
        return tuple(draw(values) for _ in range(rank))

    kernel, dilation = for_each_axis(st.integers(1, 4)), for_each_axis(st.integers(1, 2))
    extra = for_each_axis(st.integers(0, 7))
    return {
        "size": tuple((k - 1) * d + 1 + e for k, d, e in zip(kernel, dilation, extra, strict=True)),
        "kernel": kernel,
        "strides": for_each_axis(st.integers(1, 3)),
        "dilation": dilation,
        "padding": for_each_axis(st.tuples(st.integers(0, 3), st.integers(0, 3))),
        "batch": draw(st.integers(1, 3)),
        "inputs": draw(st.sampled_from([1, 3, 16, 300])),
        "outputs": draw(st.sampled_from([16, 48, 64])),
        "adds": draw(st.booleans()),
        "rectifies": draw(st.booleans()),
    }


def check(case):
    rank = len(case["size"])
    x = normal((case["batch"], *case["size"], case["inputs"]))
    w = normal((*case["kernel"], case["inputs"], case["outputs"]), seed=1)
    bias = normal((case["outputs"],), seed=2)
    arguments = {
        "window_strides": case["strides"],
        "padding": case["padding"],
        "rhs_dilation": case["dilation"],
    }

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, dimension_numbers=LAYOUTS[rank], **arguments)

    def alone(x, w, bias, addend):
        result = convolve(x, w) + bias.reshape([1] * (x.ndim - 1) + [-1])
        result = result + (addend if case["adds"] else 0)
        return lax.max(result, 0.0) if case["rectifies"] else result

    (equation,) = jax.make_jaxpr(convolve)(x, w).eqns
    shapes = [var.aval for var in (*equation.invars, *equation.outvars)]
    parameters = ConvolutionParameters.of(equation.params)
    kernel = FusedConvolution.find(*shapes, parameters, adds=case["adds"], relu=case["rectifies"])
    addend = normal(shapes[2].shape, seed=3)

    def fused(x, w, bias, addend):
        return kernel(x, kernel.pack(w), None, bias, addend if case["adds"] else None)

    with jax_alone():
        expected = jax.jit(alone)(x, w, bias, addend)
    assert_close(jax.jit(fused)(x, w, bias, addend), expected)
    return kernel.implementation


@settings(max_examples=15, deadline=None, derandomize=True)
@given(cases())
def test_results_are_those_of_jax(case):
    check(case)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(cases())
def test_results_are_those_of_jax_for_many_sizes(case):
    check(case)


@pytest.mark.parametrize(
    ("batch", "size", "inputs", "outputs"),
    [(1, 7, 512, 512), (1, 40, 16, 32), (5, 13, 300, 16)],
    ids=["by columns", "by pixels", "few columns"],
)
def test_work_is_divided_among_threads(native, batch, size, inputs, outputs):
    case = {
        "size": (size, size),
        "kernel": (1, 1),
        "strides": (1, 1),
        "dilation": (1, 1),
        "padding": ((0, 0), (0, 0)),
        "batch": batch,
        "inputs": inputs,
        "outputs": outputs,
        "adds": True,
        "rectifies": True,
    }
    has_long_vectors = "AVX-512" in native.instruction_set
    assert check(case) == ("direct:avx512" if has_long_vectors else "direct:avx2")


def rectified(x, w):
    """Return a compiled 1x1 convolution with a bias and a rectifier."""

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=LAYOUTS[2])

    (equation,) = jax.make_jaxpr(convolve)(x, w).eqns
    shapes = [var.aval for var in (*equation.invars, *equation.outvars)]
    parameters = ConvolutionParameters.of(equation.params)
    kernel = FusedConvolution.find(*shapes, parameters, adds=False, relu=True)
    return jax.jit(lambda x, w, bias: kernel(x, kernel.pack(w), None, bias, None))


def test_what_is_not_a_number_stays_so():
    x = normal((1, 4, 4, 16))
    x[0, 1, 1, 3] = np.nan
    w, bias = normal((1, 1, 16, 16), seed=1), normal((16,), seed=2)
    result = np.asarray(rectified(x, w)(x, w, bias))
    assert np.isnan(result[0, 1, 1]).all()
    assert np.isnan(result).sum() == 16


def test_requests_side_by_side_find_helpers_awake_and_asleep():
    x, w, bias = normal((1, 40, 40, 64)), normal((1, 1, 64, 64), seed=1), normal((64,), seed=2)
    run = rectified(x, w)
    expected = np.asarray(run(x, w, bias))

    def client(number):
        results = []
        for pause in np.random.default_rng(number).choice([0, 0.0005, 0.004], 40):
            results.append(np.asarray(run(x, w, bias)))
            time.sleep(pause)
        return results

    with ThreadPoolExecutor(4) as clients:
        for results in clients.map(client, range(4)):
            for result in results:
                np.testing.assert_array_equal(result, expected)
