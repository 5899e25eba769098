"""A fused convolution is a convolution, a bias, an addition and a ReLU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.cpu.convolution import ConvolutionParameters
from convoy.cpu.fused_convolution import FusedConvolution
from jax import lax

from .reference import HALF_TYPES, assert_close, assert_rounded_once, jax_alone, normal

pytestmark = pytest.mark.usefixtures("native")

X, W = (2, 8, 8, 6), (3, 3, 6, 10)
NHWC = ("NHWC", "HWIO", "NHWC")


def convolve(x, w, padding="SAME", **options):
    return lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=NHWC, **options)


def find(function, x=X, w=W, dtype=np.float32, adds=False, relu=False):
    jaxpr = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(x, dtype), jax.ShapeDtypeStruct(w, dtype))
    (equation,) = [e for e in jaxpr.eqns if e.primitive is lax.conv_general_dilated_p]
    avals = [var.aval for var in (*equation.invars, *equation.outvars)]
    parameters = ConvolutionParameters.of(equation.params)
    return FusedConvolution.find(*avals, parameters, adds=adds, relu=relu)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_one_call_computes_all_of_it(adds, relu):
    kernel = find(convolve, adds=adds, relu=relu)
    x, w, bias = normal(X), normal(W, 1), normal((10,), 2)
    addend = normal((2, 8, 8, 10), 3) if adds else None
    got = jax.jit(lambda x, w: kernel(x, kernel.pack(w), None, bias, addend))(x, w)
    with jax_alone():
        expected = jax.jit(lambda x, w: convolve(x, w))(x, w) + bias.reshape(1, 1, 1, 10)
    expected = expected if addend is None else expected + addend
    assert_close(got, jnp.maximum(expected, 0) if relu else expected)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("outputs", [10, 32])
def test_in_half_precision_the_result_is_rounded_once(dtype, outputs):
    kernel = find(convolve, (2, 8, 8, 16), (3, 3, 16, outputs), dtype, adds=True, relu=True)
    x, w, addend = (
        jnp.asarray(normal(shape, seed), dtype)
        for seed, shape in enumerate([(2, 8, 8, 16), (3, 3, 16, outputs), (2, 8, 8, outputs)])
    )
    scale, bias = normal((outputs,), 3), normal((outputs,), 4)

    got = jax.jit(lambda x, w, a: kernel(x, kernel.pack(w), scale, bias, a))(x, w, addend)
    wide = [a.astype(np.float32) for a in (x, w, addend)]
    with jax_alone():
        exact = jax.jit(lambda x, w: convolve(x, w))(*wide[:2])
    by_channel = (1, 1, 1, outputs)
    exact = exact * scale.reshape(by_channel) + bias.reshape(by_channel) + wide[2]
    assert got.dtype == dtype
    assert_rounded_once(got, jnp.maximum(exact, 0))


def test_what_the_table_does_not_have_is_not_found():
    assert find(convolve, dtype=np.int32) is None
    assert find(lambda x, w: convolve(x, w, ((-1, 0), (0, 0)))) is None
    assert find(lambda x, w: convolve(x, w, ((1, 1), (1, 1)), lhs_dilation=(2, 2))) is None
    assert find(lambda x, w: convolve(x, w, batch_group_count=2)) is None
