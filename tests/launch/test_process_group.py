"""Groups of processes that start, run and end together; each process runs a shell script."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from convoy.launch import agent
from convoy.launch.process_group import ProcessGroup

from .running import is_alive, shell_tasks, wait_until

pytestmark = pytest.mark.integration


def run(*scripts, heartbeat_timeout=60.0, environment=None):
    """Run shell scripts as a group; return it, its exit status and the printed lines."""
    printed = []
    group = ProcessGroup(
        shell_tasks(*scripts, environment=environment),
        lambda index, line: printed.append((index, line)),
        heartbeat_timeout=heartbeat_timeout,
    )
    return group, group.run(), printed


def test_output_of_each_process_is_shown_line_by_line():
    _, status, printed = run("echo one; echo two >&2", "printf 'half\\rwhole\\nno end'")
    assert status == 0
    assert [line for index, line in printed if index == 0] == ["one", "two"]
    assert [line for index, line in printed if index == 1] == ["whole", "no end"]


def test_a_failed_process_ends_the_others_and_determines_the_status():
    group, status, printed = run("echo $$; exec sleep 600", "echo first; exit 3")
    assert status == 3
    assert group.failed.task.index == 1
    assert list(group.failed.last_lines) == ["first"]
    assert not is_alive(int(dict(printed)[0]))


def test_a_killed_process_is_reported_with_its_signal():
    group, status, _ = run("exec sleep 600", "kill -KILL $$")
    assert status == 128 + signal.SIGKILL
    assert "process 1 on localhost" in group.failed.describe_failure()
    assert "SIGKILL" in group.failed.describe_failure()


def test_children_of_a_process_end_with_it():
    _, _, printed = run("sleep 600 & echo $!")
    assert not is_alive(int(printed[0][1]))


def test_a_process_whose_heartbeats_stop_counts_as_hung():
    group, status, printed = run(
        "exec sleep 600",
        'echo $$; eval "printf . >&$CONVOY_HEARTBEAT"; exec sleep 600',
        heartbeat_timeout=0.5,
    )
    assert status == 1
    assert group.failed.task.index == 1
    assert "stopped sending heartbeats" in group.failed.describe_failure()
    assert not is_alive(int(dict(printed)[1]))


def test_a_process_that_ends_as_it_should_may_take_its_time():
    _, status, _ = run('eval "printf .! >&$CONVOY_HEARTBEAT"; sleep 2', heartbeat_timeout=0.5)
    assert status == 0


def test_a_missing_program_is_reported():
    (task,) = shell_tasks("")
    task = replace(task, command=["no-such-program"])
    printed = []
    group = ProcessGroup([task], lambda index, line: printed.append(line), heartbeat_timeout=60)
    assert group.run() == agent.CANNOT_RUN
    assert printed == ["no-such-program cannot be run: No such file or directory"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_all_processes_end_when_the_launcher_dies(tmp_path, number):
    """The launcher runs in its own process and is ended while its group runs."""
    program = f"""
import os
from tests.launch.test_process_group import run
run("echo $$ > {tmp_path}/0; exec sleep 600", "echo $$ > {tmp_path}/1; exec sleep 600")
"""
    launcher = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    try:
        files = [tmp_path / "0", tmp_path / "1"]
        wait_until(lambda: all(file.exists() and file.read_text().strip() for file in files))
        pids = [int(file.read_text()) for file in files]
        launcher.send_signal(number)
        launcher.wait()
        wait_until(lambda: not any(map(is_alive, pids)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(launcher.pid, signal.SIGKILL)
