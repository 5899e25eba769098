from itertools import pairwise

import numpy as np
import pytest
from convoy.train.models.small import mnist_cnn, toy_model
from keras import layers


def test_the_network_for_mnist_is_that_of_the_tutorial():
    model = mnist_cnn((28, 28, 1), 10)
    assert model.count_params() == 34_826
    assert model.get_layer("flatten").output.shape == (None, 1600)
    probabilities = np.asarray(model(np.ones((2, 28, 28, 1), "float32")))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(("normalise", "name"), [(False, "toy_model"), (True, "toy_model_bn")])
def test_the_toy_model_has_batch_norms_after_its_pools_on_request(normalise, name):
    model = toy_model((32, 32, 3), 10, normalise=normalise)
    kinds = [type(layer) for layer in model.layers]
    after_pools = [after for kind, after in pairwise(kinds) if kind is layers.MaxPooling2D]
    norm = layers.BatchNormalization
    expected = [norm, norm] if normalise else [layers.Conv2D, layers.Flatten]
    assert (model.name, after_pools) == (name, expected)
    assert kinds.count(norm) == (2 if normalise else 0)


def test_classes_are_probabilities_in_float32():
    model = toy_model((28, 28, 1), 7)
    assert (model.output_shape, model.output.dtype) == ((None, 7), "float32")
