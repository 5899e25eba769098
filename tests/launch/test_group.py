"""Processes that begin, run and end together; what runs in them are small shell scripts."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from convoy.launch import agent
from convoy.launch.group import LOCAL, Group, Task


def run(*scripts, silence=60.0, environment=None):
    """Run shell scripts as a group; return it, its exit status and what was printed."""
    printed = []
    tasks = [
        Task(
            n, LOCAL, ["sh", "-c", script], environment or {}, {"number": 0, "of": 1, "numa": False}
        )
        for n, script in enumerate(scripts)
    ]
    group = Group(tasks, lambda index, line: printed.append((index, line)), silence=silence)
    return group, group.run(), printed


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second, if it ends while it is read
        return False


def test_shows_what_each_process_prints_line_by_line():
    _, status, printed = run("echo one; echo two >&2", "printf 'half\\rwhole\\nno end'")
    assert status == 0
    assert [line for index, line in printed if index == 0] == ["one", "two"]
    assert [line for index, line in printed if index == 1] == ["whole", "no end"]


def test_one_that_fails_ends_the_others_and_gives_its_status():
    group, status, printed = run("echo $$; exec sleep 600", "echo first; exit 3")
    assert status == 3
    assert group.failed.task.index == 1
    assert list(group.failed.last_lines) == ["first"]
    assert not is_alive(int(dict(printed)[0]))


def test_one_that_is_killed_is_named_by_its_signal():
    group, status, _ = run("exec sleep 600", "kill -KILL $$")
    assert status == 128 + signal.SIGKILL
    assert "process 1 on localhost" in group.failed.how_it_ended()
    assert "SIGKILL" in group.failed.how_it_ended()


def test_what_a_process_has_started_ends_with_it():
    _, _, printed = run("sleep 600 & echo $!")
    assert not is_alive(int(printed[0][1]))


def test_one_that_was_alive_and_falls_silent_is_taken_for_hung():
    group, status, printed = run(
        "exec sleep 600",
        'echo $$; eval "printf . >&$CONVOY_HEARTBEAT"; exec sleep 600',
        silence=0.5,
    )
    assert status == 1
    assert group.failed.task.index == 1
    assert "not heard of" in group.failed.how_it_ended()
    assert not is_alive(int(dict(printed)[1]))


def test_a_program_that_does_not_exist_is_said_and_counted():
    task = Task(0, LOCAL, ["no-such-program"], {}, {"number": 0, "of": 1, "numa": False})
    printed = []
    group = Group([task], lambda index, line: printed.append(line), silence=60)
    assert group.run() == agent.CANNOT_RUN
    assert printed == ["no-such-program cannot be run: No such file or directory"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_behind_when_the_launcher_dies(tmp_path, number):
    """The launcher is a process of its own here, and ended while its group runs."""
    program = f"""
import os
from tests.launch.test_group import run
run("echo $$ > {tmp_path}/0; exec sleep 600", "echo $$ > {tmp_path}/1; exec sleep 600")
"""
    launcher = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    try:
        files = [tmp_path / "0", tmp_path / "1"]
        _until(lambda: all(file.exists() and file.read_text().strip() for file in files))
        pids = [int(file.read_text()) for file in files]
        launcher.send_signal(number)
        launcher.wait()
        _until(lambda: not any(map(is_alive, pids)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(launcher.pid, signal.SIGKILL)


def _until(condition):
    """Look again and again, for a bounded time, until something holds."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_cores_are_divided_over_the_processes_of_a_host():
    cores = sorted(os.sched_getaffinity(0))
    shares = [agent.share_of_cores(n, len(cores), numa=False) for n in range(len(cores))]
    assert shares == ([[core] for core in cores] if len(cores) > 1 else [[]])
    assert agent.share_of_cores(0, 1, numa=False) == []
    assert agent.share_of_cores(1, 2 * len(cores), numa=False) == []


def test_processes_take_turns_on_memory_nodes(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(agent, "memory_nodes", lambda: [[0, 1, 2, 3], [4, 5, 6, 7]])
    shares = [agent.share_of_cores(n, 4, numa=True) for n in range(4)]
    assert shares == [[0, 1], [4, 5], [2, 3], [6, 7]]
    assert [agent.share_of_cores(n, 2, numa=True) for n in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
