import keras
import numpy as np
import pytest
from convoy.layers import MeanOfViews, Views
from keras import layers


@pytest.fixture
def images(rng):
    return rng.integers(0, 256, (3, 5, 6, 2)).astype("uint8")


def test_two_views_are_the_image_and_its_mirror_image(images):
    views = np.asarray(Views(2)(images)).reshape(3, 2, 5, 6, 2)
    np.testing.assert_array_equal(views[:, 0], images)
    np.testing.assert_array_equal(views[:, 1], images[:, :, ::-1])


def test_six_views_are_shifted_by_a_pixel_too(images):
    views = np.asarray(Views(6)(images)).reshape(3, 6, 5, 6, 2)
    np.testing.assert_array_equal(views[:, 0], images)
    np.testing.assert_array_equal(views[:, 2, 1:, 1:], images[:, :-1, :-1])
    np.testing.assert_array_equal(views[:, 4, :-1, :-1], images[:, 1:, 1:])
    # What comes in at the edge is the pixel beside it.
    np.testing.assert_array_equal(views[:, 2, 0, 1:], images[:, 1, :-1])
    np.testing.assert_array_equal(views[:, 4, -1, :-1], images[:, -2, 1:])
    np.testing.assert_array_equal(views[:, 1::2], views[:, ::2, :, ::-1])
    assert views.dtype == np.uint8


def network():
    inputs = keras.Input((5, 6, 2))
    logits = layers.Dense(4)(layers.Flatten()(inputs))
    return keras.Model(inputs, logits), keras.Model(inputs, layers.Softmax()(logits))


@pytest.mark.parametrize("count", [1, 2, 6])
def test_the_mean_is_that_of_the_logits_by_hand(rng, count):
    images = rng.normal(size=(3, 5, 6, 2)).astype("float32")
    logits, probabilities = network()
    ours = MeanOfViews(count)(probabilities(Views(count)(images)))
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), "reflect")
    shifted = padded[:, :-2, :-2], padded[:, 2:, 2:]

    def with_mirror(seen):
        return 0.5 * np.asarray(logits(seen)) + 0.5 * np.asarray(logits(seen[:, :, ::-1]))

    mean = {
        1: lambda: np.asarray(logits(images)),
        2: lambda: with_mirror(images),
        6: lambda: 0.5 * with_mirror(images) + 0.25 * sum(map(with_mirror, shifted)),
    }[count]()
    expected = np.exp(mean) / np.exp(mean).sum(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=1e-5)


def test_what_a_view_says_cannot_be_stays_finite():
    out = np.asarray(MeanOfViews(2)(np.array([[1, 0], [1, 0]], "float32")))
    np.testing.assert_allclose(out, [[1, 0]], atol=1e-6)


def test_survive_saving():
    for layer in (Views(6), MeanOfViews(2)):
        config = keras.saving.serialize_keras_object(layer)
        assert keras.saving.deserialize_keras_object(config).count == layer.count
