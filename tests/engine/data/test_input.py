"""The kind of feed for some data, and data that does not divide."""

import convoy
import keras
import numpy as np
import pytest
from convoy.engine.data.input import Budget, open_input
from convoy.engine.data.placement import Placement
from convoy.engine.data.resident import Resident
from convoy.engine.data.streamed import Streamed
from convoy.engine.execution_config import ExecutionConfig

X, Y = np.ones((12, 2), np.float32), np.ones((12, 1), np.float32)


@pytest.fixture(scope="module")
def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def open_data(model, data=(X, Y, None), budget=1 << 20, mode="train", **options):
    settings = {name: options.pop(name) for name in ("batch_size", "steps") if name in options}
    config = ExecutionConfig(Placement(None), **options)
    return open_input(model, mode, data, config, Budget(budget), 4, **settings)


def test_a_budget_is_spent():
    budget = Budget(10)
    assert budget.reserve(6)
    assert not budget.reserve(6)
    assert budget.left == 4


def test_arrays_that_fit_stay_on_the_device(model):
    assert isinstance(open_data(model, batch_size=4), Resident)


def test_arrays_that_do_not_fit_are_streamed(model):
    assert isinstance(open_data(model, batch_size=4, budget=8), Streamed)


def test_a_generator_is_streamed(model):
    assert isinstance(open_data(model, ((batch for batch in [(X, Y)]), None, None)), Streamed)


def test_steps_divide_the_samples_if_there_is_no_batch_size(model):
    assert open_data(model, steps=3).step_samples == 4


@pytest.mark.parametrize("batch_size", [0, -1, True, 2.5])
def test_a_batch_size_that_is_no_number_is_refused(model, batch_size):
    with pytest.raises(ValueError, match="is not a number of samples"):
        open_data(model, batch_size=batch_size)


def test_an_epoch_that_ends_inside_of_a_weight_update_is_refused(model):
    with pytest.raises(ValueError, match=r"steps_per_epoch=3 is not a multiple of .*Pass 4"):
        open_data(model, steps=3, batch_size=2, gradient_accumulation=2)


def test_fewer_samples_than_a_weight_update_takes_are_refused(model):
    with pytest.raises(
        ValueError, match=r"12 samples, fewer than .*1 replica x gradient_accumulation=4"
    ):
        open_data(model, batch_size=4, gradient_accumulation=4)


def test_a_global_batch_that_does_not_divide_is_refused(model):
    with pytest.raises(ValueError, match=r"batch_size=4 does not divide .*Pass a multiple of 3"):
        open_data(model, batch_size=4, gradient_accumulation=3, batch="global")


def test_samples_that_are_left_out_are_reported(model):
    with pytest.warns(UserWarning, match="4 of 12 samples do not fill a weight update of 8"):
        open_data(model, batch_size=4, gradient_accumulation=2)


def test_evaluation_leaves_no_sample_out(model):
    feed = open_data(model, batch_size=8, mode="evaluate", gradient_accumulation=2)
    feed.begin_epoch()
    chunks = [feed.next(4), feed.next(4)]
    assert [(chunk.micro_batch_samples, chunk.sharded) for chunk in chunks] == [
        (8, True),
        (4, False),
    ]


def test_a_prepared_model_builds_itself_for_its_data():
    with convoy.Strategy(devices=1).scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    open_data(model, batch_size=4)
    assert model.built
