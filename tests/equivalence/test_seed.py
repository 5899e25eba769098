"""`keras.utils.set_random_seed` makes two runs the same, bit by bit."""

import keras
import pytest

from . import models
from .side_by_side import assert_same, make_convoy, state


def train(table, steps=3, *, seed=7, epochs=3, **strategy):
    model = make_convoy(models.with_dropout, steps, seed=seed, **strategy)
    history = model.fit(
        table[0][:144],
        table[2][:144],
        batch_size=24 // strategy.get("devices", 1),
        epochs=epochs,
        validation_split=1 / 6,
        verbose=0,
    )
    return history.history, state(model)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("budget", [None, 0])
def test_two_runs_are_bit_identical(table, devices, budget):
    settings = {"devices": devices, "data_budget": budget}
    assert_same(train(table, **settings), train(table, **settings), exact=True)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("steps", [1, 1000, "auto"])
def test_steps_per_execution_does_not_change_a_bit(table, steps, devices):
    expected = train(table, 3, devices=devices)
    assert_same(train(table, steps, devices=devices), expected, exact=True)


def test_another_seed_is_another_run(table):
    first, second = train(table, seed=7), train(table, seed=8)
    assert first[0]["loss"] != second[0]["loss"]


def test_a_second_fit_draws_on_from_where_the_first_ended(table):
    x, y = table[0], table[2]

    def histories(fits):
        model = make_convoy(models.with_dropout)
        rows = []
        for epochs in fits:
            rows += model.fit(x, y, batch_size=30, epochs=epochs, verbose=0).history["loss"]
        return rows, state(model)

    assert_same(histories([1, 2]), histories([3]), exact=True)


def test_setting_the_seed_again_repeats_the_order_of_data(table):
    x, y = table[0], table[2]
    model = make_convoy(models.classifier)
    start = model.get_weights()

    def again():
        keras.utils.set_random_seed(3)
        model.set_weights(start)
        for variable in model.optimizer.variables[2:]:
            variable.assign(0 * variable)
        return model.fit(x, y, batch_size=30, epochs=2, verbose=0).history

    again()
    assert_same(again(), again(), exact=True)
