import os
import sys

import pytest
from convoy.bench.execution import NOT_FOUND, TIMED_OUT, execute


@pytest.fixture
def run(tmp_path):
    """Run a command; returns the execution and the lines that were shown."""

    def run(*command, timeout=None):
        shown = []
        execution = execute(
            command,
            tmp_path / "logs",
            folder=tmp_path,
            environment=os.environ,
            timeout=timeout,
            show=shown.append,
        )
        return execution, shown

    return run


def test_output_is_shown_and_written_to_files(run, tmp_path):
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    execution, shown = run(sys.executable, "-c", program)
    assert (execution.exit_status, execution.stdout, execution.stderr) == (3, "out\n", "err\n")
    assert sorted(shown) == ["err", "out"]
    assert (tmp_path / "logs" / "stdout").read_text() == "out\n"
    assert (tmp_path / "logs" / "stderr").read_text() == "err\n"


def test_a_command_is_ended_after_its_timeout(run):
    execution, shown = run("sleep", "100", timeout=0.1)
    assert execution.exit_status == TIMED_OUT
    assert execution.stderr == "Timeout (0.1)\n"
    assert shown == ["Timeout (0.1)"]


def test_a_command_may_exit_with_the_status_of_a_timeout(run):
    execution, shown = run("sh", "-c", f"exit {TIMED_OUT}")
    assert (execution.exit_status, execution.stderr, shown) == (TIMED_OUT, "", [])


def test_a_missing_program_is_reported(run):
    execution, _ = run("no-such-program")
    assert execution.exit_status == NOT_FOUND
    assert execution.stderr == "no-such-program: No such file or directory\n"


def test_children_of_a_command_are_ended_with_it(run):
    execution, _ = run("sh", "-c", "sleep 600 & echo started")
    assert (execution.exit_status, execution.stdout) == (0, "started\n")
    assert execution.seconds < 60
