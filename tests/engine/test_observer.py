"""The observer that does nothing, and the pauses of training."""

import contextlib

from convoy.engine.observer import NULL_OBSERVER, observe_pauses, pause


def test_nothing_is_wrapped_without_an_observer():
    program, runner, feed, callbacks = object(), object(), object(), (print, print)
    assert NULL_OBSERVER.program("train", program, varying=2) is program
    assert NULL_OBSERVER.runner("train", runner) is runner
    assert NULL_OBSERVER.epoch("train", runner, feed, callbacks) == (runner, feed, callbacks)
    assert not NULL_OBSERVER.times_actions
    with NULL_OBSERVER.run("fit", None, None) as entered:
        assert entered is None


def test_the_callbacks_at_the_end_of_an_epoch_are_called():
    ended = []
    NULL_OBSERVER.end_epoch(lambda *values: ended.append(values), 3, {"loss": 0.5})
    assert ended == [(3, {"loss": 0.5})]


def test_pauses_are_observed_until_that_ends():
    seen = []

    @contextlib.contextmanager
    def context(name):
        seen.append(f"begin {name}")
        yield
        seen.append(f"end {name}")

    end = observe_pauses(context)
    with pause("checkpoint"):
        seen.append("paused")
    end()
    with pause("another"):
        pass
    assert seen == ["begin checkpoint", "paused", "end checkpoint"]
