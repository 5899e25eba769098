"""Parts of the fast network for CIFAR-10: initialiser, offsets, whitening."""

import keras
import numpy as np
import pytest
from convoy.layers import Dirac, Offset, Whiten
from convoy.optimizers import Regularized
from keras import layers, optimizers

pytestmark = pytest.mark.integration


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


def test_an_initializer_survives_saving():
    config = keras.saving.serialize_keras_object(Dirac(seed=3))
    assert keras.saving.deserialize_keras_object(config).get_config() == {"seed": 3}
    assert str(Dirac()((3, 3, 2, 4), "float16").dtype) == "float16"


def trained_offset(data, speed):
    """Return an offset after some steps, so small that gradients hardly change."""
    layer = Offset(speed)
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile(optimizers.SGD(1e-5, 0.9, nesterov=True), "mse")
    model.fit(*data, batch_size=4, verbose=0, shuffle=False)
    return np.sqrt(speed) * layer.beta.numpy()


def test_sgd_moves_it_so_many_times_as_fast(rng):
    data = rng.normal(size=(2, 16, 3))
    np.testing.assert_allclose(
        trained_offset(data, 64.0), 64 * trained_offset(data, 1.0), rtol=2e-2
    )


def test_l2_draws_it_to_zero_as_fast_as_any_weight():
    layer = Offset(64)
    layer.build((None, 2))
    layer.beta.assign([1.0, -2.0])
    Regularized(optimizers.SGD(0.5), l2=0.1).apply([np.zeros(2, "float32")], [layer.beta])
    added = np.asarray(layer(np.zeros((1, 2), "float32")))
    np.testing.assert_allclose(added, [[8 * 0.95, -16 * 0.95]], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_begins_as_nothing_and_keeps_the_form(rng, dtype):
    x = rng.normal(size=(2, 4, 4, 3)).astype(dtype)
    out = Offset(dtype=dtype)(x)
    assert out.dtype == dtype
    np.testing.assert_array_equal(np.asarray(out), x)


def test_an_offset_survives_saving():
    config = keras.saving.serialize_keras_object(Offset(16))
    assert keras.saving.deserialize_keras_object(config).speed == 16


@pytest.fixture
def images(rng):
    """Images whose neighbouring pixels and channels are alike, as in pictures."""
    rough = rng.normal(size=(200, 10, 9, 3))
    smooth = rough + np.roll(rough, 1, 1) + np.roll(rough, 1, 2)
    mixing = np.array([[1, 0.8, 0.6], [0, 0.5, 0.3], [0, 0, 0.4]])
    return (2 + smooth @ mixing).astype("float32")


def adapted(images, **settings):
    layer = Whiten(**settings)
    layer.adapt(images)
    return layer


def test_channels_of_what_comes_out_have_variance_1_and_do_not_vary_together(images):
    out = np.asarray(adapted(images, epsilon=0.0)(images))
    assert out.shape == (200, 9, 8, 24)
    covariance = np.cov(out[..., :12].reshape(-1, 12), rowvar=False)
    np.testing.assert_allclose(covariance, np.eye(12), atol=2e-3)


def test_the_second_half_of_the_filters_are_negatives_of_the_first(images):
    kernel = adapted(images).kernel.numpy()
    np.testing.assert_array_equal(kernel[..., 12:], -kernel[..., :12])


def test_epsilon_weakens_directions_of_little_variance(images):
    out = np.asarray(adapted(images, epsilon=0.5)(images))
    raw = np.asarray(adapted(images, epsilon=0.0)(images))
    weakened = out[..., :12].reshape(-1, 12).var(0)
    kernel = adapted(images, epsilon=0.0).kernel.numpy()[..., :12]
    variances = 1 / np.square(kernel).sum((0, 1, 2))
    np.testing.assert_allclose(weakened, variances / (variances + 0.5), rtol=1e-2)
    np.testing.assert_allclose(raw[..., :12].reshape(-1, 12).var(0), 1, rtol=1e-2)


def test_training_changes_the_bias_only(images):
    layer = adapted(images)
    assert [weight.name for weight in layer.trainable_weights] == ["bias"]
    assert [weight.name for weight in layer.non_trainable_weights] == ["kernel"]


def test_patches_of_another_size_and_one_channel(rng):
    layer = adapted(rng.normal(size=(20, 8, 8, 1)), size=3)
    assert layer.kernel.shape == (3, 3, 1, 18)


def test_is_saved_with_its_weights(images, tmp_path):
    model = keras.Sequential([keras.Input((10, 9, 3)), Whiten()])
    model.layers[0].adapt(images)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.layers[0].kernel, model.layers[0].kernel)
    assert loaded.layers[0].get_config() == model.layers[0].get_config()
