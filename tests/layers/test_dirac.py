import keras
import numpy as np
import pytest
from convoy.layers import Dirac
from keras import layers


def convolution(channels, filters, size=3):
    layer = layers.Conv2D(
        filters, size, padding="same", use_bias=False, kernel_initializer=Dirac(seed=1)
    )
    layer.build((None, 8, 8, channels))
    return layer


def test_first_filters_pass_on_what_they_are_given(rng):
    x = rng.normal(size=(2, 8, 8, 3)).astype("float32")
    out = np.asarray(convolution(3, 5)(x))
    np.testing.assert_array_equal(out[..., :3], x)
    assert (out[..., 3:] != 0).all()


def test_the_rest_are_uniform_within_the_root_of_a_filters_weights():
    drawn = convolution(4, 204).kernel.numpy()[..., 4:]
    bound = 1 / np.sqrt(3 * 3 * 4)
    assert np.abs(drawn).max() <= bound
    np.testing.assert_allclose(drawn.std(), bound / np.sqrt(3), rtol=0.05)


def test_with_fewer_filters_than_channels_some_pass_nothing_on(rng):
    x = rng.normal(size=(2, 8, 8, 4)).astype("float32")
    np.testing.assert_array_equal(np.asarray(convolution(4, 2)(x)), x[..., :2])


@pytest.mark.parametrize("size", [1, 5])
def test_windows_of_other_sizes(rng, size):
    x = rng.normal(size=(2, 8, 8, 2)).astype("float32")
    np.testing.assert_array_equal(np.asarray(convolution(2, 2, size)(x)), x)


def test_survives_saving():
    config = keras.saving.serialize_keras_object(Dirac(seed=3))
    assert keras.saving.deserialize_keras_object(config).get_config() == {"seed": 3}
    assert str(Dirac()((3, 3, 2, 4), "float16").dtype) == "float16"
