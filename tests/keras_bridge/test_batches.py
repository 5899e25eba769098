"""Batches from all kinds of input."""

import keras
import numpy as np
from convoy import keras_bridge


def test_builds_metrics_loss_and_optimizer(model):
    batches = keras_bridge.Batches(np.ones((6, 4)), np.ones((6, 2)), None, 2)
    batches.build(model, "train")
    assert model.optimizer.built
    assert len(model.metrics_variables) == 4
    assert keras_bridge.compiled_losses(model)[0][0] == ()


def test_builds_a_model_that_was_never_called():
    model = keras.Sequential([keras.layers.Dense(2)])
    keras_bridge.Batches(np.ones((6, 4)), None, None, 2).build(model, "predict")
    assert model.built


def test_arrays_come_in_the_types_that_keras_gives_them():
    batches = keras_bridge.Batches(np.ones((6, 4), "float64"), np.ones(6, "int64"), None, 2)
    x, y = batches.arrays
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert batches.sliced_from_arrays


def test_what_is_not_an_array_is_walked_through():
    def generate():
        yield np.ones((2, 4)), np.ones((2, 2))

    batches = keras_bridge.Batches(generate(), None, None, None)
    assert batches.arrays is None
    assert not batches.sliced_from_arrays
    assert len(list(batches)) == 1


class Numbers(keras.utils.PyDataset):
    """Batches that hold their own numbers, and a list of those that were read."""

    def __init__(self):
        super().__init__()
        self.read = []

    @property
    def num_batches(self):
        return 4

    def __getitem__(self, index):
        self.read.append(index)
        return (np.full((1, 1), index + 1.0),)


def test_an_epoch_goes_on_after_batches_that_are_not_read():
    dataset = Numbers()
    batches = keras_bridge.Batches(dataset)
    batches.seek(0, 3)
    last = list(batches)[3]
    assert dataset.read == [3]
    np.testing.assert_array_equal(last[0], [[4]])


def test_arrays_go_on_after_batches_that_are_not_sliced():
    batches = keras_bridge.Batches(np.arange(6.0)[:, None], batch_size=2)
    batches.seek(0, 2)
    first, second, third = batches
    assert first is second is None
    np.testing.assert_array_equal(third, [[4], [5]])


def test_batches_that_another_process_reads_hold_zeros():
    dataset = Numbers()
    batches = keras_bridge.Batches(dataset)
    assert batches.read_selected(lambda place: place % 2 == 1)
    dataset.read.clear()
    assert [float(x[0, 0]) for (x,) in batches] == [0, 2, 0, 4]


def test_a_generator_cannot_be_resumed():
    batches = keras_bridge.Batches((np.ones((2, 4)),) for _ in range(2))
    assert batches.resume_obstacle is not None
    assert keras_bridge.Batches(np.ones((6, 4)), batch_size=2).resume_obstacle is None
