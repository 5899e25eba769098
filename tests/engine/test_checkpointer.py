"""The checkpointer among a run's callbacks, and the state that it saves."""

from types import SimpleNamespace

import keras
import pytest
from convoy.engine.checkpointer import RunState, find_checkpointer


class Checkpointer(keras.callbacks.Callback):
    def begin_run(self, run_state): ...

    def save_if_due(self, run_state): ...

    def is_preempted(self): ...

    def end_run(self): ...


def run_state(**values):
    feed = SimpleNamespace(position=lambda epoch_over: epoch_over)
    model = SimpleNamespace(stop_training=values.pop("stop_training", False))
    return RunState(model, None, feed, [], **({"epoch": 1, "last_epoch": 3} | values))


def test_finds_the_checkpointer():
    checkpointer = Checkpointer()
    assert find_checkpointer([keras.callbacks.History(), checkpointer]) is checkpointer


def test_most_runs_have_none():
    assert find_checkpointer([keras.callbacks.History()]) is None


def test_two_are_refused():
    with pytest.raises(ValueError, match="received 2 Checkpoints callbacks"):
        find_checkpointer([Checkpointer(), Checkpointer()])


@pytest.mark.parametrize(
    ("values", "finished"),
    [
        ({}, False),
        ({"epoch": 3}, True),
        ({"stop_training": True}, True),
        ({"stop_training": True, "step": 2}, False),
    ],
)
def test_a_run_is_finished_between_epochs_only(values, finished):
    assert run_state(**values).finished == finished


def test_the_position_is_asked_for_between_or_inside_of_epochs():
    assert run_state().position is True
    assert run_state(step=2).position is False
