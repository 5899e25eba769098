"""These fail when a release of Keras changes what Convoy stands on."""

from pathlib import Path

import keras
import numpy as np
import pytest
from convoy import keras_bridge


@pytest.fixture
def model():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)], name="bridge"
    )
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def test_values_are_the_arrays_that_variables_hold(model):
    kernel = model.trainable_variables[:1]
    (value,) = keras_bridge.values(kernel)
    assert value is kernel[0].value
    keras_bridge.assign(kernel, [value + 1])
    np.testing.assert_array_equal(kernel[0].numpy(), value + 1)


def test_finds_the_states_of_random_layers(model):
    seeds = keras_bridge.seed_variables(model)
    names = [v.name for v in model.non_trainable_variables if id(v) in seeds]
    assert names == ["seed_generator_state"]


def test_metrics_say_that_their_state_adds_up(model):
    model.fit(np.ones((2, 4)), np.ones((2, 2)), verbose=0)
    assert {variable.aggregation for variable in model.metrics_variables} == {"sum"}


def test_compile_makes_another_compilation(model):
    before = keras_bridge.compilation(model)
    model.compile("sgd", "mse")
    assert keras_bridge.compilation(model) is not before


def test_builds_metrics_loss_and_optimizer(model):
    batches = keras_bridge.Batches(np.ones((6, 4)), np.ones((6, 2)), None, 2)
    batches.build(model, "train")
    assert model.optimizer.built
    assert len(model.metrics_variables) == 4
    assert keras_bridge.compiled_losses(model)[0][0] == ()


def test_builds_a_model_that_was_never_called():
    model = keras.Sequential([keras.layers.Dense(2)])
    keras_bridge.Batches(np.ones((6, 4)), None, None, 2).build(model, "predict")
    assert model.built


def test_knows_which_methods_a_class_defines_anew():
    class Custom(keras.Model):
        def train_step(self, state, data):
            return None

    assert keras_bridge.overridden(Custom(), ("train_step", "test_step")) == ["train_step"]


def test_arrays_come_in_the_types_that_keras_gives_them():
    batches = keras_bridge.Batches(np.ones((6, 4), "float64"), np.ones(6, "int64"), None, 2)
    x, y = batches.arrays
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert batches.batch_size_is_ours


def test_what_is_not_an_array_is_walked_through():
    def generate():
        yield np.ones((2, 4)), np.ones((2, 2))

    batches = keras_bridge.Batches(generate(), None, None, None)
    assert batches.arrays is None
    assert not batches.batch_size_is_ours
    assert len(list(batches)) == 1


def test_callbacks_hear_batches_in_order():
    heard = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: heard.append(b))
    callback.async_safe = True
    callbacks = keras_bridge.Callbacks([callback])
    callbacks.on_train_begin()
    for step in range(200):
        callbacks.on_train_batch_end(step, {})
    callbacks.on_train_end()
    assert heard == list(range(200))


def test_keras_has_no_device_loop_of_its_own_that_would_clash():
    from keras.src.backend.jax import trainer

    source = Path(trainer.__file__).read_text()
    assert "lax.scan" not in source, "Keras scans over steps now: look at steps_per_execution again"
