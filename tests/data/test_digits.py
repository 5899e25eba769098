import numpy as np
from convoy.data import load_digits


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
