import itertools

import keras
import numpy as np
import pytest
from convoy.estimator import ArrayInput, ModeKeys
from convoy.estimator.input import Element, Signature, elements


class Squares(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.full((3, 1), index), np.full((3,), index**2)


class Counted(Squares):
    """Says how many batches it has by Keras's newer name for that."""

    __len__ = None
    num_batches = 2


class Endless(Squares):
    num_batches = None


def test_batches_of_arrays_leave_out_what_fills_none():
    rows = list(ArrayInput(np.arange(7), batch_size=3))
    assert [row.tolist() for row in rows] == [[0, 1, 2], [3, 4, 5]]
    kept = list(ArrayInput(np.arange(7), batch_size=3, drop_remainder=False))
    assert kept[-1].tolist() == [6]


def test_every_pass_has_an_order_of_its_own():
    data = ArrayInput(np.arange(8), np.arange(8), batch_size=8, shuffle=True, passes=2, seed=1)
    (first, labels), (second, _) = data
    assert first.tolist() == labels.tolist() != second.tolist()
    assert sorted(first) == sorted(second) == list(range(8))
    assert next(iter(data))[0].tolist() == first.tolist()


def test_takes_data_sets_of_several_kinds():
    taken = list(elements(Squares(), ModeKeys.TRAIN, None))
    assert [element.labels.tolist() for element in taken] == [[0, 0, 0], [1, 1, 1]]
    taken = list(elements(Counted(), ModeKeys.TRAIN, None))
    assert [element.labels[0] for element in taken] == [0, 1]
    taken = list(itertools.islice(elements(Endless(), ModeKeys.TRAIN, None), 4))
    assert [element.labels[0] for element in taken] == [0, 1, 4, 9]
    (item,) = elements(iter([{"features": np.ones((2, 1)), "labels": np.ones(2)}]), "eval", None)
    assert item.labels.shape == (2,)
    (item,) = elements(({"a": np.ones((2, 1)), "b": np.ones(2)},), ModeKeys.PREDICT, 2)
    assert set(item.features) == {"a", "b"}


def test_predictions_do_without_labels():
    (item,) = elements((np.ones((2, 1)), np.ones(2)), ModeKeys.PREDICT, 2)
    assert item.labels is None


def test_inputs_are_named_after_their_place():
    element = Element({"left": np.ones((2, 3)), "right side": np.ones((2, 4))}, np.ones(2, "int32"))
    tensors = Signature(element).tensors()
    assert set(tensors.named()) == {"features_left", "features_right_side", "labels"}
    assert tensors.features["left"].shape == (None, 3)
    assert (tensors.labels.shape, tensors.labels.dtype) == ((None,), "int32")


def test_refuses_arrays_that_differ_in_length():
    with pytest.raises(ValueError, match=r"differ in length: \[2, 3\]"):
        ArrayInput(np.ones(2), np.ones(3), batch_size=1)
    with pytest.raises(ValueError, match="2 samples do not fill a batch of 3"):
        ArrayInput(np.ones(2), batch_size=3)
