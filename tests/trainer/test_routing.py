"""One thread at a time runs a model; a second one that would train it is refused."""

import threading

import convoy
import keras
import numpy as np
import pytest
from convoy.trainer.routing import Turns


class Model:
    name = "model"


def in_another_thread(function):
    """Return what a function returned or raised in another thread."""
    outcomes = []

    def work():
        try:
            outcomes.append(function())
        except RuntimeError as error:
            outcomes.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return outcomes[0]


def take(turns, method):
    with turns.take(method):
        return "taken"


@pytest.mark.parametrize(("running", "called"), [("fit", "fit"), ("fit", "predict")])
def test_another_thread_is_refused_while_a_model_trains(running, called):
    turns = Turns(Model())
    with turns.take(running):
        outcome = in_another_thread(lambda: take(turns, called))
    assert str(outcome).startswith(
        f"{called}() was called on 'model' while another thread runs {running}()."
    )
    assert in_another_thread(lambda: take(turns, called)) == "taken"


def test_training_is_refused_while_another_thread_evaluates():
    turns = Turns(Model())
    with turns.take("evaluate"):
        assert "fit() was called" in str(in_another_thread(lambda: take(turns, "fit")))


def test_a_callback_may_evaluate_its_model():
    turns = Turns(Model())
    with turns.take("fit"):
        assert take(turns, "evaluate") == "taken"


def test_a_turn_ends_with_an_error():
    turns = Turns(Model())
    with pytest.raises(KeyError), turns.take("fit"):
        raise KeyError
    assert in_another_thread(lambda: take(turns, "fit")) == "taken"


@pytest.mark.parametrize("devices", [1, 2])
def test_two_threads_that_train_one_model(devices):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)).astype("float32"), rng.integers(0, 3, 60)
    with convoy.Strategy(devices=devices).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
    begun, refused = threading.Event(), []

    def second(batch, logs):
        if not begun.is_set():
            begun.set()
            fit = model.fit
            refused.append(in_another_thread(lambda: fit(x, y, batch_size=10, verbose=0)))

    callback = keras.callbacks.LambdaCallback(on_train_batch_begin=second)
    first = model.fit(x, y, batch_size=10, epochs=2, verbose=0, callbacks=[callback])
    assert "while another thread runs fit()" in str(refused[0])
    assert len(first.history["loss"]) == 2
    assert np.isfinite(model.fit(x, y, batch_size=10, verbose=0).history["loss"]).all()
