"""A callback that raises leaves weights, optimizer and random state as stock Keras leaves them."""

import random

import keras
import numpy as np
import pytest

from . import models
from .side_by_side import STRATEGIES, assert_equivalent, state

HOOKS = (
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_test_end",
    "on_epoch_end",
    "on_train_end",
)


class StopError(Exception):
    """An error in a callback."""


def raising(hook, call):
    """Return a callback whose `hook` raises an error when it is called for the n-th time."""
    calls = iter(range(1, 1000))

    class Raising(keras.callbacks.Callback):
        pass

    def method(self, *args, **kwargs):
        if next(calls) == call:
            raise StopError(hook)

    setattr(Raising, hook, method)
    return Raising()


def random_state():
    return [list(np.random.get_state()[1]), np.random.get_state()[2], hash(random.getstate())]


def interrupted(table, hook, call):
    x, _, classes = table

    def run(model):
        settings = {"batch_size": 30, "verbose": 0, "validation_data": (x, classes)}
        with pytest.raises(StopError, match=hook):
            model.fit(x, classes, epochs=3, callbacks=[raising(hook, call)], **settings)
        left = state(model), random_state()
        # And it trains on, from there.
        return *left, model.fit(x, classes, **settings).history

    return run


@pytest.mark.parametrize(
    ("hook", "call"),
    [(hook, 1 if hook in ("on_train_begin", "on_train_end") else 2) for hook in HOOKS]
    # Before the order of an epoch is drawn: of the first one, and of the second.
    + [("on_train_batch_begin", 1), ("on_train_batch_begin", 6)],
)
def test_an_error_in_a_callback(table, hook, call):
    assert_equivalent(models.with_dropout, interrupted(table, hook, call), steps=1)


@pytest.mark.parametrize("hook", ["on_train_batch_begin", "on_train_batch_end", "on_epoch_end"])
@pytest.mark.parametrize("strategy", ["two replicas", "accumulation"])
def test_an_error_in_a_callback_of_several_replicas(table, strategy, hook):
    run = interrupted(table, hook, 2)
    assert_equivalent(models.classifier, run, steps=1, **STRATEGIES[strategy])


def test_an_error_between_executions_of_several_steps(table):
    def make(steps):
        return models.with_dropout(2 if steps == 1 else steps)

    # Stock Keras takes two steps per execution as well, so that both stop after four.
    assert_equivalent(make, interrupted(table, "on_train_batch_end", 2), steps=2)
