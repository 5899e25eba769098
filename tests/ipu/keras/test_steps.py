from types import SimpleNamespace

import keras
import numpy as np
import pytest
from convoy.ipu.keras.steps import check_execution, per_replica, steps_per_replica


def arrays(samples, **arguments):
    return {"x": np.zeros((samples, 2), "float32"), **arguments}


@pytest.mark.parametrize(
    ("samples", "batch", "replicas", "steps"),
    [
        (59968, 64, 1, 937),
        (9984, 64, 1, 156),
        (59904, 64, 2, 468),
        (9984, 64, 2, 78),
        (9984, 32, 2, 156),
        (59904, 64, 1, 936),
        (9728, 64, 1, 152),
    ],
)
def test_counts_the_steps_of_the_tutorial(samples, batch, replicas, steps):
    assert steps_per_replica(arrays(samples, batch_size=batch), replicas) == steps


@pytest.mark.parametrize(("samples", "left", "whole"), [(60000, 32, 59968), (10000, 16, 9984)])
def test_refuses_an_incomplete_batch(samples, left, whole):
    with pytest.raises(ValueError, match=rf"{left} are left\. Trim the data to {whole} samples"):
        steps_per_replica(arrays(samples, batch_size=64), 1)


def test_batches_that_do_not_divide_over_replicas_are_left_out(caplog):
    assert steps_per_replica(arrays(10, batch_size=2), 2) == 2
    assert (
        "steps_per_epoch=5 does not divide over 2 replicas: 1 batches are left out" in caplog.text
    )


def test_refuses_fewer_batches_than_replicas():
    with pytest.raises(ValueError, match="steps_per_epoch=1 is fewer than the 2 replicas"):
        steps_per_replica(arrays(4, batch_size=4), 2)


def test_steps_per_epoch_counts_the_batches_of_all_replicas():
    assert steps_per_replica(arrays(96, steps_per_epoch=7), 2) == 3
    with pytest.raises(ValueError, match="4 are left"):
        steps_per_replica(arrays(100, steps_per_epoch=7), 2)


class DataSet:
    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return self.batches


@pytest.mark.parametrize(("batches", "steps", "epochs"), [(8, 8, 5), (8, 4, 2), (8, 8, 1)])
def test_a_data_set_as_long_as_an_epoch_begins_anew(batches, steps, epochs):
    arguments = {"x": DataSet(batches), "steps_per_epoch": steps, "epochs": epochs}
    assert steps_per_replica(arguments, 1) == steps


def test_refuses_more_epochs_than_a_data_set_has():
    arguments = {"x": DataSet(8), "steps_per_epoch": 4, "epochs": 5, "initial_epoch": 2}
    with pytest.raises(ValueError, match="4 steps on each replica in 3 epochs are 12 batches"):
        steps_per_replica(arguments, 1)
    # Counted for each replica, as upstream does.
    assert steps_per_replica(arguments, 2) == 2


def test_validation_data_is_split_off_first():
    assert steps_per_replica(arrays(100, batch_size=10, validation_split=0.2), 1) == 8


def test_refuses_generators():
    with pytest.raises(ValueError, match="x is a generator"):
        steps_per_replica({"x": (i for i in range(3))}, 1)


def test_refuses_data_of_unknown_size():
    class Endless:
        def __iter__(self):
            yield 1

    with pytest.raises(ValueError, match=r"Endless is not known\. Pass steps_per_epoch"):
        steps_per_replica({"x": Endless()}, 1)
    assert steps_per_replica({"x": Endless(), "steps_per_epoch": 8}, 2) == 4


class Sized(keras.utils.PyDataset):
    def __init__(self, *sizes):
        super().__init__()
        self.sizes = sizes

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        return np.zeros((self.sizes[index], 2)), np.zeros(self.sizes[index])


def test_refuses_a_data_set_whose_last_batch_is_smaller():
    assert steps_per_replica({"x": Sized(4, 4, 4)}, 1) == 3
    with pytest.raises(ValueError, match=r"last batch of Sized has 2 samples, the first 4\. L"):
        steps_per_replica({"x": Sized(4, 4, 2)}, 1)
    assert steps_per_replica({"x": Sized(4, 4, 2), "steps_per_epoch": 2}, 1) == 2


def test_refuses_a_data_set_whose_batches_have_no_known_size():
    def data_set(size):
        specs = tuple(keras.KerasTensor((size, *shape)) for shape in ((28, 28), ()))
        return SimpleNamespace(element_spec=specs)

    with pytest.raises(ValueError, match=r"of shape \(None, 28, 28\).* drop_remainder=True"):
        steps_per_replica({"x": data_set(None), "steps_per_epoch": 4}, 1)
    assert steps_per_replica({"x": data_set(8), "steps_per_epoch": 4}, 2) == 2


def test_steps_of_an_evaluation_are_the_batches_of_all_replicas(caplog):
    assert per_replica("steps", 4, 2) == 2
    assert not caplog.records
    assert per_replica("steps", 5, 2) == 2
    assert "steps=5 does not divide over 2 replicas: 1 batches are left out" in caplog.text
    with pytest.raises(ValueError, match=r"=1 is fewer than the 2 replicas.* multiple of 2"):
        per_replica("steps", 1, 2)


@pytest.mark.parametrize(
    ("steps", "execution", "accumulation"), [(468, 468, 1), (936, 936, 8), (12, 4, 2), (8, 1, 1)]
)
def test_takes_executions_that_divide_an_epoch(steps, execution, accumulation, caplog):
    check_execution(steps, execution, accumulation)
    assert not caplog.records


def test_more_steps_than_an_epoch_has_are_one_execution(caplog):
    check_execution(156, 468, 1)
    assert "steps_per_execution=468 is more than the 156 steps" in caplog.text


@pytest.mark.parametrize(("steps", "execution", "accumulation"), [(8, 6, 4), (8, 1, 2), (6, 8, 4)])
def test_refuses_executions_that_end_inside_of_a_weight_update(steps, execution, accumulation):
    with pytest.raises(RuntimeError, match="inside of a weight update"):
        check_execution(steps, execution, accumulation)


def test_refuses_an_epoch_that_ends_inside_of_an_execution():
    with pytest.raises(ValueError, match=r"10 steps .* not a multiple of steps_per_execution=4"):
        check_execution(10, 4, 2)
