import keras
import numpy as np
import pytest
from convoy.data.augment import normalise
from convoy.layers import Decompress, Preprocess, SyntheticImages


@pytest.fixture
def images(rng):
    return rng.integers(0, 256, (8, 6, 5, 3)).astype("uint8")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_bytes_become_the_same_numbers(images, dtype):
    out = Decompress(dtype=dtype)(images)
    assert out.dtype == dtype
    np.testing.assert_array_equal(np.asarray(out), images)


@pytest.mark.parametrize("way", ["scale", "standardise", "imagenet", "cifar10"])
def test_device_and_host_normalise_alike(images, way):
    ours = np.asarray(Preprocess(way)(images))
    np.testing.assert_allclose(ours, normalise(images, way), rtol=1e-4, atol=1e-5)


def test_a_plain_image_stays_finite():
    assert np.isfinite(np.asarray(Preprocess("standardise")(np.zeros((1, 4, 4, 3))))).all()


def test_scaling_and_imagenets_mean(images):
    np.testing.assert_allclose(Preprocess("scale")(images), images / 255, rtol=1e-6)
    expected = (images / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(Preprocess("imagenet")(images), expected, rtol=1e-4, atol=1e-5)


def test_flips_some_images_in_training_and_none_otherwise(images):
    layer = Preprocess("scale", flip=True)
    np.testing.assert_allclose(layer(images, training=False), images / 255, rtol=1e-6)
    out = np.asarray(layer(images, training=True)) * 255
    kept = np.isclose(out, images).all((1, 2, 3))
    mirrored = np.isclose(out, images[:, :, ::-1]).all((1, 2, 3))
    assert (kept | mirrored).all()
    assert kept.any()
    assert mirrored.any()


def test_synthetic_images_differ_from_each_other_and_from_call_to_call():
    layer = SyntheticImages((4, 4, 3), as_bytes=True)
    first, second = (np.asarray(layer(np.zeros((2, 1), "uint8"))) for _ in range(2))
    assert first.shape == (2, 4, 4, 3)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, first.astype("uint8"))


def test_layers_survive_saving():
    for layer in (Decompress(), Preprocess("scale", flip=True), SyntheticImages((2, 2, 1), True)):
        config = keras.saving.serialize_keras_object(layer)
        assert keras.saving.deserialize_keras_object(config).get_config() == layer.get_config()
