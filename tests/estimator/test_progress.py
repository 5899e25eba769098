import io
import logging

import pytest
from convoy.estimator import progress
from convoy.estimator.progress import ProgressCallback
from convoy.progress_bar import Output


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests move by hand."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_now_and_then(clock):
    output = Output(io.StringIO())
    callback = ProgressCallback("training", 1000, output)
    callback.on_train_begin()
    for steps, seconds in ((100, 10.0), (400, 40.0), (500, 50.0), (1000, 100.0)):
        clock[0] = 100.0 + seconds
        callback.on_train_batch_end(steps - 1)
    callback.on_train_end()
    assert output.stream.getvalue() == (
        "training: 400 of 1,000 steps, 10.0 steps/s\ntraining: 1,000 of 1,000 steps, 10.0 steps/s\n"
    )


def test_a_run_of_unknown_length_has_lines_too(clock):
    output = Output(io.StringIO())
    callback = ProgressCallback("evaluation", None, output)
    callback.on_test_begin()
    clock[0] = 140.0
    callback.on_test_batch_end(79)
    assert output.stream.getvalue() == "evaluation: 80 steps, 2.0 steps/s\n"


def test_nothing_is_shown_beside_the_log_lines_of_the_estimator(clock, caplog):
    caplog.set_level(logging.INFO, "convoy.estimator")
    output = Output(io.StringIO())
    callback = ProgressCallback("training", 10, output)
    callback.on_train_begin()
    clock[0] = 200.0
    callback.on_train_batch_end(9)
    callback.on_train_end()
    assert output.stream.getvalue() == ""
