"""Models as they are made, built and compiled."""

import keras
import numpy as np
from convoy import keras_bridge


def test_finds_the_policies_of_layers():
    layers = [keras.layers.Dense(2, dtype="mixed_float16"), keras.layers.Dense(2, dtype="float16")]
    inner = keras.Sequential([keras.Input((2,)), *layers])
    outer = keras.Sequential([keras.Input((2,)), inner])
    assert keras_bridge.policies(outer) == {"mixed_float16", "float16"}
    assert keras_bridge.policies(keras.Sequential()) == {"float32"}


def test_compile_makes_another_compilation(model):
    before = keras_bridge.compilation(model)
    model.compile("sgd", "mse")
    assert keras_bridge.compilation(model) is not before


def test_keras_is_told_the_types_that_a_device_has(model, monkeypatch):
    """JAX warns of 64 bits that it will narrow, and NumPy's whole numbers have them."""
    told = []
    monkeypatch.setattr(model, "_symbolic_build", lambda data_batch: told.append(data_batch))
    x, y = np.zeros((2, 4), "float16"), {"a": np.zeros(2, "int64"), "b": np.zeros(2)}
    keras_bridge.build_for_batch(model, (x, y, None))
    ((x, y, weights),) = told
    assert (x.shape, x.dtype, y["a"].dtype, y["b"].dtype) == ((2, 4), "float16", "int32", "float32")
    assert weights is None
    keras_bridge.build_for_batch(model, None)
    assert told[1] is None


def test_knows_which_methods_a_class_defines_anew():
    class Custom(keras.Model):
        def train_step(self, state, data):
            return None

    assert keras_bridge.overridden(Custom(), ("train_step", "test_step")) == ["train_step"]
