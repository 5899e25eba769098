"""One thread at a time runs a model; a second one that would train it is refused."""

import threading

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
