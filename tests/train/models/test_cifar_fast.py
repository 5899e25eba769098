import numpy as np
import pytest
from convoy.layers import Whiten
from convoy.train.models import make_model
from keras import layers

pytestmark = pytest.mark.integration


def test_has_as_many_weights_as_the_network_that_it_is():
    model = make_model("cifar_fast", (32, 32, 3), 10)
    convolutions = 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256)
    offsets = 2 * (64 + 256 + 256)
    assert sum(int(np.prod(w.shape)) for w in model.trainable_weights) == (
        24 + convolutions + offsets + 256 * 10
    )
    assert model.get_layer("flatten").output.shape == (None, 256)


def test_norms_are_its_own():
    model = make_model("cifar_fast", (32, 32, 3), 10)
    norms = [layer for layer in model.layers if isinstance(layer, layers.BatchNormalization)]
    assert len(norms) == 6
    for norm in norms:
        assert (norm.momentum, norm.center, norm.scale) == (0.6, False, False)


def test_takes_images_of_other_shapes_and_classes():
    model = make_model("cifar_fast", (28, 28, 1), 7)
    assert model.output_shape == (None, 7)
    assert next(x for x in model.layers if isinstance(x, Whiten)).kernel.shape == (2, 2, 1, 8)
