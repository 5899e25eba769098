import keras
import numpy as np
import pytest
from convoy.data import DATASETS
from convoy.train.flags import Options
from convoy.train.network import adapt_layers, make_network, recommended_splits
from keras import layers


class Mean(layers.Layer):
    """Takes the mean of the data away."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False)

    def call(self, x):
        return keras.ops.subtract(x, self.mean)

    def adapt(self, x):
        self.mean.assign(np.asarray(x).mean(0))


@pytest.fixture
def x(rng):
    return rng.normal(5, 2, (50, 3)).astype("float32")


def test_each_layer_sees_what_those_before_it_make(x):
    first, second = Mean(), Mean()
    inputs = keras.Input((3,))
    scaled = layers.Rescaling(2.0)(inputs)
    noisy = layers.Dropout(0.5)(first(scaled))
    model = keras.Model(inputs, layers.Dense(1)(second(layers.Rescaling(1, 7)(noisy))))
    adapt_layers(model, lambda: x)
    np.testing.assert_allclose(first.mean.numpy(), 2 * x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(second.mean.numpy(), 7, rtol=1e-4)


def test_a_layer_that_another_model_has_too_sees_what_comes_to_it_here(x):
    shared = Mean()
    inner = keras.Sequential([keras.Input((3,)), shared])
    inputs = keras.Input((3,))
    adapt_layers(keras.Model(inputs, inner(layers.Rescaling(3.0)(inputs))), lambda: x)
    np.testing.assert_allclose(shared.mean.numpy(), 3 * x.mean(0), rtol=1e-5)


def test_where_nothing_adapts_no_data_is_read():
    def read():
        raise AssertionError

    model = keras.Sequential([keras.Input((3,)), layers.Normalization(), layers.Dense(1)])
    adapt_layers(model, read)
    assert not np.any(model.layers[0].mean)


def network(**options):
    return make_network(Options(**options), DATASETS["mnist"], 1)


def test_layers_that_run_first_stand_first_and_keep_the_names_of_the_rest():
    model = network(eight_bit_transfer=True, accelerator_side_preprocess=True)
    names = [layer.name for layer in model.layers]
    assert names[1:4] == [
        "eight_bit_transfer_decompression_layer",
        "preprocessing_layer",
        "conv2d_0",
    ]
    assert model.inputs[0].dtype == "uint8"


def test_recommended_splits_divide_the_parameters():
    model = network(model="toy_model_bn")
    assert recommended_splits(model, 1) == []
    (split,) = recommended_splits(model, 2)
    before = [layer.name for layer in model.layers].index(split)
    so_far = sum(layer.count_params() for layer in model.layers[: before + 1])
    assert so_far >= model.count_params() / 2 > so_far - model.get_layer(split).count_params()
