import jax.numpy as jnp
import numpy as np
from convoy import ipu

capture = ipu.grad_util_ops.capture_upstream_gradients


def captured(function, *values):
    with ipu.eager.backprop.GradientCaptureContext() as context:
        context.gradient(function, list(values))
    return {tag: np.asarray(value).tolist() for tag, value in context.captured_gradients.items()}


def test_the_gradient_of_one_tensor_has_the_tag_as_its_key():
    found = captured(lambda values: jnp.sum(3 * capture(values[0] ** 2, tag="square")), jnp.ones(2))
    assert found == {"square": [3, 3]}


def test_the_gradients_of_several_tensors_are_numbered():
    def loss(values):
        first, second = capture([values[0], values[1]], tag="both")
        return jnp.sum(2 * first + 5 * second)

    assert captured(loss, jnp.float32(1), jnp.float32(1)) == {"both_0": 2, "both_1": 5}


def test_tensors_and_their_structure_are_returned_unchanged():
    found = capture({"a": jnp.ones(2), "b": jnp.zeros(3)}, tag="x")
    assert {name: array.shape for name, array in found.items()} == {"a": (2,), "b": (3,)}
