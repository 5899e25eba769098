import jax.numpy as jnp
import keras
from convoy.estimator import function


def test_takes_tensors_and_arrays():
    twice = function(lambda x: 2 * x)
    assert twice(jnp.float32(3)) == 6
    x = keras.Input((2,))
    model = keras.Model(x, twice(x))
    assert model(jnp.ones((1, 2))).tolist() == [[2, 2]]


def test_takes_products_of_a_tensor_and_a_number():
    """Keras says that they are sparse."""
    x = keras.Input((2,))
    model = keras.Model(x, function(jnp.sin)(0.0 * keras.ops.mean(x)))
    assert model(jnp.ones((1, 2))) == 0
