"""A fused convolution is a convolution, a bias, an addition and a ReLU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.cpu.convolution import ConvolutionParameters
from convoy.cpu.fused_convolution import FusedConvolution
from jax import lax

from .reference import assert_close, jax_alone, normal

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
    got = jax.jit(lambda x, w: kernel(x, kernel.pack(w), bias, addend))(x, w)
    with jax_alone():
        expected = jax.jit(lambda x, w: convolve(x, w))(x, w) + bias.reshape(1, 1, 1, 10)
    expected = expected if addend is None else expected + addend
    assert_close(got, jnp.maximum(expected, 0) if relu else expected)


def test_what_the_table_does_not_have_is_not_found():
    assert find(convolve, dtype=np.float16) is None
    assert find(lambda x, w: convolve(x, w, ((-1, 0), (0, 0)))) is None
    assert find(lambda x, w: convolve(x, w, ((1, 1), (1, 1)), lhs_dilation=(2, 2))) is None
    assert find(lambda x, w: convolve(x, w, batch_group_count=2)) is None
