"""A second thread cannot train a model that is being trained, and does not disturb the first."""

import threading

import keras
import pytest

from . import models
from .side_by_side import IN_EVERY_STRATEGY, Recorder, assert_equivalent


def in_another_thread(function):
    """Return the error that a function raised in another thread, or `None`."""
    errors = [None]

    def work():
        try:
            function()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return errors[-1]


@IN_EVERY_STRATEGY
@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch"])
def test_a_second_thread_while_a_model_trains(table, method, strategy):
    x, _, classes = table

    def run(model):
        # Two threads in stock Keras take each other's arrays away, so there it trains alone.
        is_disturbed = hasattr(model, "set_gradient_accumulation")
        errors = []

        def call_again(batch, logs):
            if is_disturbed and batch == 0:
                errors.append(in_another_thread(lambda: getattr(model, method)(x, classes)))

        recorder = Recorder(batches=False)
        second = keras.callbacks.LambdaCallback(on_train_batch_begin=call_again)
        settings = {"batch_size": 30, "epochs": 2, "verbose": 0}
        history = model.fit(x, classes, callbacks=[second, recorder], **settings).history
        assert len(errors) == (2 if is_disturbed else 0)
        for error in errors:
            assert f"{method}() was called on" in str(error)
            assert "while another thread runs fit()" in str(error)
        return history, recorder.calls, model.fit(x, classes, **settings).history

    assert_equivalent(models.with_dropout if not strategy else models.classifier, run, **strategy)


@IN_EVERY_STRATEGY
def test_threads_that_train_a_model_each(table, strategy):
    x, _, classes = table

    def run(model):
        twin, histories = keras.models.clone_model(model), {}
        twin.set_weights(model.get_weights())
        twin.compile(models.momentum(), "sparse_categorical_crossentropy", metrics=["accuracy"])
        settings = {"batch_size": 30, "epochs": 2, "verbose": 0, "shuffle": False}
        error = in_another_thread(
            lambda: histories.update(twin.fit(x, classes, **settings).history)
        )
        assert error is None
        return model.fit(x, classes, **settings).history, histories

    assert_equivalent(models.classifier, run, **strategy)
