"""Graphs of subclassed models, from one symbolic call."""

import keras
import numpy as np
import pytest
from convoy import keras_bridge
from convoy.keras_bridge import UntraceableError


class Plain(keras.Model):
    """Two layers, of which one asks for `training`."""

    def __init__(self):
        super().__init__()
        self.dense, self.drop = keras.layers.Dense(3), keras.layers.Dropout(0.5)

    def call(self, x, training=None):
        return self.drop(self.dense(x), training=training)


def trace(model):
    inputs = keras.KerasTensor((None, 4), "float32")
    assert keras_bridge.is_built_for(model, inputs)
    return keras_bridge.trace(model, inputs)


def test_the_calls_of_a_subclassed_model_become_known():
    model = Plain()
    assert keras_bridge.is_subclassed(model)
    assert keras_bridge.graph_calls(model) is None
    trace(model)
    names = [call.name for call in keras_bridge.graph_calls(model)]
    assert names == [model.dense.name, model.drop.name]


def test_the_shape_that_a_model_was_built_for_is_found_again():
    class Buildable(Plain):
        def build(self, input_shape):
            self.dense.build(input_shape)

    model = Buildable()
    assert keras_bridge.built_inputs(model) is None
    model.build((None, 4))
    assert keras_bridge.built_inputs(model).shape == (None, 4)


def test_a_model_that_cannot_be_built_is_reported():
    class Broken(Plain):
        def call(self, x):
            raise TypeError("no")

    assert not keras_bridge.is_built_for(Broken(), keras.KerasTensor((None, 4), "float32"))


class ByValue(Plain):
    def call(self, x, training=None):
        return self.dense(x) if float(keras.ops.sum(x)) > 0 else self.drop(self.dense(x))


class ByTraining(Plain):
    def call(self, x, training=None):
        return self.drop(self.dense(x), training=training) if training else self.dense(x)


class Unused(Plain):
    def call(self, x, training=None):
        self.drop(x)
        return self.dense(x)


class Constant(Plain):
    def call(self, x, training=None):
        self.dense(x)
        return np.zeros(3, "float32")


class WithWeight(Plain):
    def __init__(self):
        super().__init__()
        self.scale = self.add_weight(shape=(3,), name="scale")

    def call(self, x, training=None):
        return self.dense(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ByValue, "cannot be traced with symbolic tensors"),
        (ByTraining, "makes other calls in training than in inference"),
        (Unused, "but returns nothing that depends on it"),
        (Constant, "returns a ndarray"),
        (WithWeight, "belongs to no layer that call"),
    ],
)
def test_what_no_graph_can_hold_is_refused(model, message):
    made = model()
    made.dense.build((None, 4))
    with pytest.raises(UntraceableError, match=message):
        keras_bridge.trace(made, keras.KerasTensor((None, 4), "float32"))
