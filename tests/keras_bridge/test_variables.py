"""Variables, generators of random numbers, and the private names of Keras behind them."""

import keras
import numpy as np
from convoy import keras_bridge


def test_values_are_the_arrays_that_variables_hold(model):
    kernel = model.trainable_variables[:1]
    (value,) = keras_bridge.values(kernel)
    assert value is kernel[0].value
    keras_bridge.assign(kernel, [value + 1])
    np.testing.assert_array_equal(kernel[0].numpy(), value + 1)


def test_an_optimizer_computes_in_the_type_that_variables_are_held_in():
    weight = keras.Variable(np.full(1, 1000.0), dtype="float16")
    optimizer = keras.optimizers.SGD(1.0, momentum=0.9)
    optimizer.build([weight])
    state = [np.asarray(v.value, "float32") for v in optimizer.variables]
    with keras_bridge.variables_held_as("float32", [weight, *optimizer.momentums]):
        (new,), _ = optimizer.stateless_apply(state, [np.full(1, 0.1, "float32")], [[1000.0]])
    assert weight.dtype == optimizer.momentums[0].dtype == "float16"
    assert new.dtype == "float32"
    np.testing.assert_allclose(new, [999.9], rtol=1e-7)


def test_knows_what_an_optimizer_updates(model):
    model.optimizer.build(model.trainable_variables)
    assert keras_bridge.updated_variables(model.optimizer) == model.trainable_variables


def test_knows_the_seed_without_drawing_from_it():
    keras.utils.set_random_seed(11)
    assert keras_bridge.random_seed() == 11
    first = np.asarray(keras.random.normal((2,)))
    keras.utils.set_random_seed(11)
    np.testing.assert_array_equal(keras.random.normal((2,)), first)


def test_finds_the_states_of_random_layers(model):
    seeds = keras_bridge.seed_variables(model)
    names = [v.name for v in model.non_trainable_variables if id(v) in seeds]
    assert names == ["seed_generator_state"]
