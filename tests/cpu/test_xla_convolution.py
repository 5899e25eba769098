"""The canonical layout changes where XLA computes, never what."""

import jax
import numpy as np
import pytest
from convoy.cpu import xla_convolution
from convoy.cpu.convolution import ConvolutionParameters
from jax import lax

pytestmark = pytest.mark.integration

LAYOUTS = [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("CHWN", "IHWO", "HWNC")]


def parameters_of(function, *arguments):
    jaxpr = jax.make_jaxpr(function)(*arguments)
    (equation,) = [e for e in jaxpr.eqns if e.primitive is lax.conv_general_dilated_p]
    return ConvolutionParameters.of(equation.params)


def shape(layout, **sizes):
    return tuple(sizes[axis] for axis in layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("feature_groups", "batch_groups"), [(1, 1), (2, 1), (1, 2)])
def test_transposed_operands_give_the_same_convolution(layout, feature_groups, batch_groups):
    random = np.random.default_rng(0)
    lhs = random.normal(size=shape(layout[0], N=4, H=7, W=6, C=4)).astype(np.float32)
    rhs = random.normal(size=shape(layout[1], H=3, W=2, I=4 // feature_groups, O=6))
    rhs = rhs.astype(np.float32)

    def convolve(lhs, rhs):
        return lax.conv_general_dilated(
            lhs,
            rhs,
            (2, 1),
            ((1, 2), (0, 1)),
            lhs_dilation=(1, 2),
            rhs_dilation=(2, 1),
            dimension_numbers=layout,
            feature_group_count=feature_groups,
            batch_group_count=batch_groups,
        )

    parameters = parameters_of(convolve, lhs, rhs)
    got = xla_convolution.convolve(lhs, rhs, parameters)
    np.testing.assert_allclose(got, convolve(lhs, rhs), rtol=1e-5, atol=1e-5)
    is_plain = layout == ("NHWC", "HWIO", "NHWC") and batch_groups == 1
    assert xla_convolution.is_in_fast_layout(parameters) == is_plain
