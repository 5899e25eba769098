"""Helpers for tests that launch processes: run the command, read results, wait."""

import contextlib
import io
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

import convoy
import keras
import numpy as np
import pytest
from convoy.cli import launch as launch_command
from convoy.launch.process_group import LOCAL, Task

from . import worker

SCRIPT = Path(worker.__file__)
SOURCE = Path(convoy.__file__).parents[1]


class Ended(NamedTuple):
    """Exit status and output of a launch."""

    returncode: int
    stdout: str
    stderr: str


def launch(*words):
    """Run `convoy launch` in this process, which saves the time of importing Convoy once more."""
    out, error = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        for name in [name for name in os.environ if name.startswith("XLA_")]:
            patch.delenv(name)
        patch.setenv("PYTHONPATH", str(SOURCE))
        status = launch_command.main([str(word) for word in words])
    return Ended(status, out.getvalue(), error.getvalue())


def outcomes(folder, count):
    return [json.loads((folder / f"{n}.json").read_text()) for n in range(count)]


def in_one_process(devices, staged=None):
    keras.utils.set_random_seed(worker.SEED)
    strategy = worker.strategy_for(staged, devices)
    return worker.train(strategy, staged=staged, devices=devices)


def assert_same_run(one, other):
    for name in ("weights", "predicted", "called"):
        for a, b in zip(one[name], other[name], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(one["evaluated"], other["evaluated"], rtol=1e-5)
    assert one["history"].keys() == other["history"].keys()
    for name, values in one["history"].items():
        np.testing.assert_allclose(values, other["history"][name], rtol=1e-5, err_msg=name)
    # Graphcore's own case: the same number in every arrangement.
    for weight in [*one["one_weight"], *other["one_weight"]]:
        assert weight == pytest.approx(0.3111111, abs=1e-6)


def shell_tasks(*scripts, environment=None):
    """Return tasks that run shell scripts on this host, bound to no cores."""
    cores = {"local_rank": 0, "local_size": 1, "numa_aware": False}
    return [
        Task(index, LOCAL, ["sh", "-c", script], environment or {}, cores)
        for index, script in enumerate(scripts)
    ]


def state_of(pid):
    """Return the letter of a process's state, which follows its name in brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_alive(pid):
    try:
        return state_of(pid) != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second, if it ends while it is read
        return False


def wait_until(condition, seconds=60):
    """Poll until a condition holds, for a bounded time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
