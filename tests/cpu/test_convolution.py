"""The forms in which JAX writes a convolution and its gradients are recognised."""

import jax
import numpy as np
import pytest
from convoy.cpu import kernel_dtypes
from convoy.cpu.convolution import ConvolutionParameters, Kind, Tensor, recognise
from jax import lax

pytestmark = pytest.mark.integration

X, W = (2, 9, 8, 4), (3, 2, 4, 6)
NHWC = ("NHWC", "HWIO", "NHWC")


def convolve(x, w, strides=(2, 1), dilation=(1, 2)):
    return lax.conv_general_dilated(
        x, w, strides, ((1, 2), (0, 1)), rhs_dilation=dilation, dimension_numbers=NHWC
    )


def convolutions(function, *shapes):
    """Return shapes and parameters of the convolutions of a function, in order."""
    jaxpr = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(s, np.float32) for s in shapes))
    equations = [e for e in jaxpr.eqns if e.primitive is lax.conv_general_dilated_p]
    return [
        (
            *(var.aval.shape for var in (*equation.invars, *equation.outvars)),
            ConvolutionParameters.of(equation.params),
        )
        for equation in equations
    ]


def gradients(function):
    return lambda *arguments: jax.vjp(function, *arguments)[1](function(*arguments))


def test_forward_and_both_gradients_are_told_apart():
    found = convolutions(gradients(convolve), X, W)
    forms = {parameters.form for *_, parameters in found}
    assert forms == {
        kernel_dtypes.FORWARD,
        kernel_dtypes.INPUT_GRADIENT,
        kernel_dtypes.WEIGHT_GRADIENT,
    }


def test_all_forms_of_one_convolution_have_its_tensors():
    for *shapes, parameters in convolutions(gradients(convolve), X, W):
        found = recognise(*shapes, parameters)
        assert found.source.sizes == (2, 4, 9, 8)
        assert found.weights.sizes == (6, 4, 3, 2)
        assert found.destination.sizes == (2, 6, 5, 7)
        assert (found.strides, found.dilations) == ((2, 1), (1, 2))
        assert (found.padding, found.padding_after()) == ((1, 0), (1, 1))


def test_with_strides_of_one_an_input_gradient_is_a_forward_convolution():
    plain = gradients(lambda x, w: convolve(x, w, (1, 1), (1, 1)))
    kinds = [recognise(*shapes, p).kind for *shapes, p in convolutions(plain, X, W)]
    assert sorted(set(kinds)) == [Kind.FORWARD, Kind.BACKWARD_WEIGHTS]


def test_a_transposed_convolution_is_an_input_gradient_and_its_gradients_are_forms_too():
    def transposed(x, w):
        return lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=NHWC)

    found = convolutions(gradients(transposed), X, W)
    forms = [parameters.form for *_, parameters in found]
    assert forms[0] == kernel_dtypes.INPUT_GRADIENT
    assert kernel_dtypes.TRANSPOSED_WEIGHT_GRADIENT in forms
    for *shapes, parameters in found:
        assert recognise(*shapes, parameters) is not None


@pytest.mark.parametrize("shape", [(0, 9, 8, 4), (2, 9, 8, 4)])
def test_an_empty_array_is_not_recognised(shape):
    ((*shapes, parameters),) = convolutions(convolve, shape, W)
    assert (recognise(*shapes, parameters) is None) == (0 in shape)


def test_a_tensor_has_the_strides_of_its_view_and_groups_first():
    view = Tensor.view((2, 5, 7, 6), (0, 3, 1, 2))
    assert view == Tensor((2, 6, 5, 7), (210, 1, 42, 6))
    assert view.split(1, 3) == Tensor((3, 2, 2, 5, 7), (2, 210, 1, 42, 6))
