"""Graphcore's hook that logs tensors of the device loop."""

import logging
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from convoy.ipu.ipu_session_run_hooks import IPULoggingTensorHook, LogOp

TENSOR = keras.KerasTensor((), name="loss")


def run_with(hook, *values):
    """Let a hook see some device calls, each with the values of its steps."""
    run = SimpleNamespace(global_step=0, values={}, loss=None)
    hook.begin(run)
    for steps in values:
        run.values = {hook.key(name): np.array(steps) for name in hook.tensors}
        run.global_step += len(steps)
        hook.after_execution(run)
    hook.end(run)


def test_log_returns_the_operation_for_train_op():
    hook = IPULoggingTensorHook(every_n_iter=1)
    assert hook.log({"a": TENSOR}) == LogOp(hook)
    assert hook.tensors == {"a": TENSOR}


@pytest.mark.parametrize("values", [TENSOR, [TENSOR]])
def test_tensors_without_names_are_logged_under_their_own(values):
    hook = IPULoggingTensorHook(every_n_iter=1)
    hook.log(values)
    assert list(hook.tensors) == ["loss"]


def test_a_hook_logs_one_call():
    hook = IPULoggingTensorHook(every_n_iter=1)
    hook.log(TENSOR)
    with pytest.raises(RuntimeError, match="Make a hook for each call"):
        hook.log(TENSOR)


def test_a_hook_whose_operation_was_not_made_is_refused():
    with pytest.raises(RuntimeError, match="Put its result into train_op"):
        run_with(IPULoggingTensorHook(every_n_iter=1))


@pytest.mark.parametrize(
    "intervals", [{}, {"every_n_iter": 1, "every_n_secs": 1.0}], ids=["none", "both"]
)
def test_one_interval_is_passed(intervals):
    with pytest.raises(ValueError, match="pass one of them, or at_end=True alone"):
        IPULoggingTensorHook(**intervals)


def test_intervals_count_device_calls_and_two_hooks_do_not_share_names():
    lines, first, second = [], *(IPULoggingTensorHook(every_n_iter=2, formatter=str) for _ in "12")
    first.formatter = lambda values: lines.append(values) or ""
    first.log({"a": TENSOR})
    second.log({"a": TENSOR})
    assert first.key("a") != second.key("a")
    run_with(first, [1.0, 2.0], [3.0, 4.0], [5.0, 6.0])
    assert lines == [{"a": 4.0}]


def test_all_values_since_the_last_line_are_logged_on_request(caplog):
    mode = IPULoggingTensorHook.LoggingMode.ALL
    hook = IPULoggingTensorHook(at_end=True, logging_mode=mode, formatter=lambda v: f"{v['a']}")
    hook.log({"a": TENSOR})
    with caplog.at_level(logging.INFO):
        run_with(hook, [1.0, 2.0], [3.0])
    assert "[1. 2. 3.]" in caplog.text
