"""Replaced operations of Keras's JAX backend."""

import keras
import numpy as np
import pytest
from convoy import keras_bridge

X = np.array([[-2.0, 3.0]], "float32")


class Doubled:
    """Counts calls of ReLU and doubles its results."""

    def __init__(self):
        self.calls = 0

    def relu(self, original, x):
        self.calls += 1
        return 2 * original(x)


def test_layers_use_the_replacement_in_the_block_alone():
    replacement, layer = Doubled(), keras.layers.ReLU()
    with keras_bridge.replaced_operations(replacement):
        np.testing.assert_array_equal(layer(X), [[0, 6]])
    np.testing.assert_array_equal(layer(X), [[0, 3]])
    assert replacement.calls == 1


def test_an_error_puts_the_operations_back():
    with pytest.raises(ZeroDivisionError), keras_bridge.replaced_operations(Doubled()):
        _ = 1 / 0
    np.testing.assert_array_equal(keras.layers.ReLU()(X), [[0, 3]])


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("add", lambda: keras.layers.Add()([X, X])),
        ("relu", lambda: keras.layers.Activation("relu")(X)),
        ("moments", lambda: keras.layers.BatchNormalization()(X, training=True)),
        ("batch_normalization", lambda: keras.layers.BatchNormalization()(X)),
        ("reduce_values", lambda: keras.losses.MeanSquaredError()(X, X)),
        ("apply_mask", lambda: keras.losses.MeanSquaredError()(X, X)),
        (
            "masked_moments",
            lambda: keras.layers.BatchNormalization()(X, training=True, mask=np.array([True])),
        ),
    ],
)
def test_keras_calls_each_of_the_replaceable_operations(name, make):
    calls = []

    def operation(original, *args, **kwargs):
        calls.append(name)
        return original(*args, **kwargs)

    with keras_bridge.replaced_operations(type("", (), {name: staticmethod(operation)})):
        make()
    assert calls == [name]
