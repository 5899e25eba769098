"""1x1 convolutions in 16 bits run as matrix products where that is faster, with equal results."""

import jax.numpy as jnp
import numpy as np
import pytest
from convoy.cpu import kernel_dtypes, library, threads
from convoy.cpu.convolution import ConvolutionParameters, Kind, recognise
from convoy.cpu.convolution_lowering import describe
from jax import lax

from .reference import compare_in_half, normal, value_and_gradients

pytestmark = [pytest.mark.usefixtures("native"), pytest.mark.integration]

NHWC = ("NHWC", "HWIO", "NHWC")
# Images, and channels in and out: few pixels, more channels in than out, and more pixels.
SHAPES = [((2, 7, 7), 64, 48), ((2, 7, 7), 48, 64), ((3, 5, 9), 17, 33), ((2, 40, 40), 32, 16)]


@pytest.fixture(autouse=True)
def _has_instructions():
    if kernel_dtypes.INSTRUCTIONS["bfloat16"] not in library.load().features:
        pytest.skip("this CPU has no instructions for bfloat16")


def convolve(x, w, **options):
    options = {"window_strides": (1, 1), "padding": "VALID"} | options
    return lax.conv_general_dilated(x, w, dimension_numbers=NHWC, **options)


def implementation(images, inputs, outputs, **options):
    """Return the name of the forward convolution's implementation."""
    parameters = ConvolutionParameters(
        **{
            "window_strides": (1, 1),
            "padding": ((0, 0), (0, 0)),
            "lhs_dilation": (1, 1),
            "rhs_dilation": (1, 1),
            "dimension_numbers": lax.conv_dimension_numbers((1,) * 4, (1,) * 4, NHWC),
            "feature_group_count": 1,
            "batch_group_count": 1,
            "precision": None,
            "preferred_element_type": None,
        }
        | options
    )
    stride = parameters.window_strides[0]
    out = (images[0], *(-(-size // stride) for size in images[1:]), outputs)
    convolution = recognise((*images, inputs), (1, 1, inputs, outputs), out, parameters)
    assert convolution.kind == Kind.FORWARD
    description = describe(convolution, np.dtype(jnp.bfloat16))
    return library.load().implementation(description, threads.per_device())


@pytest.mark.parametrize(("images", "inputs", "outputs"), SHAPES)
def test_a_convolution_and_its_gradients_are_rounded_once(images, inputs, outputs):
    x, w = normal((*images, inputs)) / 4, normal((1, 1, inputs, outputs), seed=1) / 4
    compare_in_half(value_and_gradients(convolve), "bfloat16", x, w)


def test_few_pixels_are_a_matrix_product():
    assert implementation((2, 7, 7), 64, 48).startswith("brg:")
    assert implementation((2, 64, 64), 64, 48).startswith("brgconv")


def test_strides_are_left_to_the_convolution():
    assert implementation((2, 7, 7), 64, 48, window_strides=(2, 2)).startswith("brgconv")
