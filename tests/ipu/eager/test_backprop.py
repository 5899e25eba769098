import jax.numpy as jnp
import numpy as np
from convoy import ipu
from convoy.ipu.eager.backprop import GradientCaptureContext, GradientCaptureTape


def test_the_gradient_is_that_of_the_first_argument():
    weights = {"w": jnp.array([1.0, 2.0])}
    gradient = GradientCaptureContext().gradient(
        lambda values, scale: jnp.sum(scale * values["w"] ** 2), weights, jnp.float32(3)
    )
    np.testing.assert_allclose(gradient["w"], [6, 12])


def test_captured_gradients_are_those_of_the_last_call():
    capture = ipu.grad_util_ops.capture_upstream_gradients
    with GradientCaptureTape() as context:
        for factor in (2, 3):
            context.gradient(lambda x, n=factor: n * capture(x, tag="x"), jnp.float32(1))
            assert context.captured_gradients["x"] == factor
        context.gradient(lambda x: 2 * x, jnp.float32(1))
    assert context.captured_gradients == {}
