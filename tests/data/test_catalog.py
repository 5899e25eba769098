"""Datasets by name: their description, the digits of the package, and synthetic images."""

import keras
import numpy as np
import pytest
from convoy.data import DATASETS, load, load_digits
from convoy.data.catalog import CLASS_NAMES, synthetic_split


def test_sizes_shapes_and_classes():
    known = {
        name: (info.train, info.test, info.shape, info.classes) for name, info in DATASETS.items()
    }
    assert known["cifar10"] == (50_000, 10_000, (32, 32, 3), 10)
    assert known["cifar100"] == (50_000, 10_000, (32, 32, 3), 100)
    assert known["mnist"] == known["fashion_mnist"] == (60_000, 10_000, (28, 28, 1), 10)
    assert known["imagenet"] == (1_281_167, 50_000, (224, 224, 3), 1000)


def test_the_digits_come_with_the_package():
    data = load("digits")
    assert data.train[0].shape == (DATASETS["digits"].train, 8, 8, 1)
    assert len(data.test[1]) == DATASETS["digits"].test
    assert data.train[0].max() == 255


def test_what_is_nowhere_is_said_with_what_to_put_where(tmp_path, monkeypatch):
    def offline():
        raise OSError("no network\nat all")

    monkeypatch.setattr(keras.datasets.mnist, "load_data", offline)
    with pytest.raises(ValueError, match=r"mnist is not in .*\(no network\).*Put mnist.npz, or"):
        load("mnist", tmp_path)
    with pytest.raises(ValueError, match="there is no such folder"):
        load("mnist", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="'moon' is not a dataset"):
        load("moon")


def test_all_digits_are_there_once():
    (x_train, y_train), (x_test, y_test) = load_digits()
    assert x_train.shape == (1408, 8, 8, 1)
    assert x_test.shape == (389, 8, 8, 1)
    assert len(y_train) == 1408
    assert len(y_test) == 389
    everything = np.concatenate([x_train, x_test]).reshape(1797, -1)
    assert len(np.unique(everything, axis=0)) == 1797


def test_pixels_lie_between_zero_and_one():
    (x_train, _), _ = load_digits()
    assert x_train.dtype == np.float32
    assert x_train.min() == 0
    assert x_train.max() == 1


def test_classes_are_in_balance_in_both_parts():
    (_, y_train), (_, y_test) = load_digits()
    assert np.bincount(y_train).min() > 0.9 * len(y_train) / 10
    assert np.bincount(y_test).min() > 0.7 * len(y_test) / 10


def test_class_names_are_as_many_as_classes():
    assert {name: len(names) for name, names in CLASS_NAMES.items()} == {
        name: DATASETS[name].classes for name in CLASS_NAMES
    }


def test_synthetic_images_take_the_memory_of_one():
    images, labels = synthetic_split(DATASETS["cifar10"], 1000, seed=1)
    assert (images.shape, images.dtype) == ((1000, 32, 32, 3), np.uint8)
    assert (labels.shape, labels.dtype) == ((1000,), np.int32)
    assert images.strides[0] == 0
    np.testing.assert_array_equal(images[0], synthetic_split(DATASETS["cifar10"], 1, seed=1)[0][0])
