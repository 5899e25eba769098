import keras
import numpy as np
import pytest
from convoy.layers import Whiten


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
