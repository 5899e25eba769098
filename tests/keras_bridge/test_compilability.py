"""Models and data that stock Keras runs, and the layers that the engine compiles after all."""

import jax
import keras
import numpy as np
import pytest
from convoy import keras_bridge
from jax.experimental import sparse
from keras import layers

INPUT = [np.ones((4, 4), "float32"), None]


def reason(model, method="fit", inputs=INPUT, **settings):
    found = keras_bridge.stock_reason(model, method, inputs, **settings)
    return None if found is None else found.why


def with_layer(layer, shape=(8, 8, 3)):
    model = keras.Sequential([keras.Input(shape), layer])
    model.compile("sgd", "mse")
    return model


def test_a_plain_model_runs_on_the_engine(model):
    for method in keras_bridge.RUN_METHODS:
        assert reason(model, method) is None


def test_an_override_matters_to_the_methods_that_would_bypass_it():
    class Own(keras.Sequential):
        def make_test_function(self, force=False):
            return super().make_test_function(force)

    model = Own([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    assert reason(model, "fit") is None
    assert reason(model, "evaluate") == "Own overrides make_test_function."
    assert reason(model, "fit", validates=True) == "Own overrides make_test_function."


@pytest.mark.parametrize("layer", [layers.AugMix(), layers.RandomElasticTransform()])
def test_layers_that_decide_in_python_are_named(layer):
    kind = type(layer).__name__
    assert reason(with_layer(layer)) == f"{layer.name} ({kind}) cannot be compiled."


def test_a_layer_inside_of_another_is_found():
    inner = keras.Sequential([keras.Input((8, 8, 3)), layers.AugMix()])
    assert "(AugMix) cannot be compiled." in reason(with_layer(inner))


def test_a_layer_of_the_user_that_keras_must_not_compile_is_named():
    class Eager(layers.Layer):
        def __init__(self):
            super().__init__(name="eager")
            self.supports_jit = False

        def call(self, x):
            return x

    assert reason(with_layer(Eager())) == "eager (Eager) cannot be compiled."


def test_augmentation_that_only_tensorflow_cannot_compile_runs_on_the_engine():
    model = with_layer(layers.RandomRotation(0.1))
    # Keras turns the compiler off for such a layer; nobody asked for that.
    assert not model.jit_compile
    assert reason(model) is None


@pytest.mark.parametrize("setting", [{"run_eagerly": True}, {"jit_compile": False}])
def test_requests_of_compile_are_quoted(model, setting):
    model.compile("sgd", "mse", **setting)
    ((name, value),) = setting.items()
    assert reason(model) == f"{name}={value} was passed to compile()."


def test_a_distribution_of_keras_runs_as_in_keras(model):
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    try:
        assert reason(model) == "A distribution of keras.distribution is set."
    finally:
        keras.distribution.set_distribution(None)


@pytest.mark.parametrize("place", [0, 1])
def test_sparse_data_is_found_anywhere_in_the_inputs(model, place):
    inputs = list(INPUT)
    inputs[place] = {"a": sparse.BCOO.fromdense(np.eye(4, dtype="float32"))}
    assert reason(model, inputs=inputs) == "The input is sparse."


def test_random_crops_are_compiled_with_the_draws_of_stock_keras(rng):
    layer = layers.RandomCrop(5, 6)
    images = rng.random((2, 8, 8, 3), "float32")
    transformation = layer.get_random_transformation(images, training=True)
    expected = layer.transform_images(images, transformation, training=True)

    @jax.jit
    def crop(images, starts):
        return layer.transform_images(images, starts, training=True)

    np.testing.assert_array_equal(crop(images, transformation), expected)
    assert expected.shape == (2, 5, 6, 3)
