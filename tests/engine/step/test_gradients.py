import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.engine.step.gradients import captured, value_and_gradients

W, X = np.float32([1.0, 2.0]), np.float32([0.5, -1.0])


def loss(w, x):
    return jnp.sum(jnp.tanh(captured(w * x, "product"))), x


def test_captures_what_comes_back_to_a_tensor():
    (value, _), gradient, found = jax.jit(lambda w, x: value_and_gradients(loss, w, x))(W, X)
    slope = 1 - np.tanh(W * X) ** 2
    np.testing.assert_allclose(value, np.tanh(W * X).sum(), rtol=1e-6)
    np.testing.assert_allclose(gradient, slope * X, rtol=1e-6)
    assert list(found) == ["product"]
    np.testing.assert_allclose(found["product"], slope, rtol=1e-6)


def test_without_anything_to_capture_gradients_are_the_same():
    (_, _), gradient, found = value_and_gradients(lambda w: (jnp.sum(w**2), None), W)
    np.testing.assert_allclose(gradient, 2 * W)
    assert not found
    assert captured(X, "alone") is X


def test_refuses_a_tag_that_is_there_already():
    def twice(w):
        return jnp.sum(captured(w, "w") + captured(w, "w")), None

    with pytest.raises(ValueError, match="captured twice under the tag 'w'"):
        value_and_gradients(twice, W)


@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit])
def test_refuses_to_capture_inside_of_what_jax_traces_once(wrap):
    with pytest.raises(ValueError, match=r"inside of a function under jax\.jit"):
        value_and_gradients(wrap(loss), W, X)
