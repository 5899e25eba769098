"""Values of a model's variables, read before a device call and written after it."""

import keras
import numpy as np
import pytest
from convoy.engine.state import State, Variables, like


@pytest.fixture
def model():
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    return model


def lengths(variables):
    return [len(part) for part in variables.parts]


def test_each_mode_has_the_variables_that_it_changes(model):
    trainable, non_trainable = len(model.trainable_variables), len(model.non_trainable_variables)
    optimizer, metrics = len(model.optimizer.variables), len(model.metrics_variables)
    assert lengths(Variables(model, "train")) == [trainable, non_trainable, optimizer, metrics, 0]
    assert lengths(Variables(model, "evaluate")) == [trainable, non_trainable, 0, metrics, 0]
    assert lengths(Variables(model, "predict")) == [trainable, non_trainable, 0, 0, 0]


def test_what_is_written_is_read_again(model):
    variables = Variables(model, "train")
    state = variables.read()
    variables.write(state._replace(trainable=[value + 1 for value in state.trainable]))
    for before, variable in zip(state.trainable, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), before + 1)


def test_an_array_of_two_variables_is_copied_to_be_donated_once(model):
    first, second = model.trainable_variables[:2]
    second._value = first._value
    first_value, second_value = Variables(model, "predict").read().trainable[:2]
    assert first_value is first._value
    assert second_value is not first_value
    np.testing.assert_array_equal(first_value, second_value)


def test_a_layer_that_is_frozen_changes_the_variables(model):
    variables = Variables(model, "train")
    assert variables.are_those_of(model)
    model.layers[-1].trainable = False
    assert not variables.are_those_of(model)


def test_a_model_that_is_compiled_again_needs_new_variables(model):
    variables = Variables(model, "predict")
    model.compile("sgd", "mse", metrics=["mae"])
    assert not variables.are_those_of(model)


def test_a_state_takes_the_types_of_another():
    half, single = np.ones(2, np.float16), np.ones(2, np.float32)
    cast = like(State([single], [], [], []), State([half], [], [], []))
    assert cast.trainable[0].dtype == np.float16
