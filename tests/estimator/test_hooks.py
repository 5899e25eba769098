import logging

import pytest
from convoy.estimator import LoggingHook, Run
from convoy.estimator.hooks import Interval, SummaryHook


def test_a_logging_hook_needs_one_interval():
    with pytest.raises(ValueError, match="pass one of them"):
        LoggingHook()
    with pytest.raises(ValueError, match="pass one of them"):
        LoggingHook(every_steps=1, every_seconds=1)


def run_at(step, loss=0.5):
    return Run(None, "train", step, loss)


def test_an_interval_is_due_after_its_steps():
    interval = Interval(steps=3)
    interval.begin(4)
    assert [interval.is_due(step) for step in (5, 6, 7)] == [False, True, True]
    interval.begin(6)
    assert not interval.is_due(8)
    with pytest.raises(ValueError, match="0 is not an interval"):
        Interval(steps=0)


def test_logs_the_last_value_or_all_since_the_line_before(caplog):
    caplog.set_level(logging.INFO, logger="convoy.estimator")
    last = LoggingHook(every_steps=2)
    every = LoggingHook(every_steps=2, keep="all", formatter=lambda v: f"all {v['loss'].tolist()}")
    for hook in (last, every):
        hook.begin(run_at(0))
        for step in (1, 2, 3, 4):
            hook.after_execution(run_at(step, float(step)))
    lines = [record.message.split(" (")[0] for record in caplog.records]
    assert lines == [
        "loss = 2.0, step = 2",
        "loss = 4.0, step = 4",
        "all [1.0, 2.0]",
        "all [3.0, 4.0]",
    ]


def test_writes_one_file_for_a_run(tmp_path):
    hook = SummaryHook(tmp_path, every_steps=2)
    hook.begin(run_at(0))
    hook.after_execution(run_at(1))
    assert not list(tmp_path.iterdir())
    for step in (2, 3, 4):
        hook.after_execution(run_at(step))
    hook.end(run_at(4))
    assert len(list(tmp_path.iterdir())) == 1
