"""Kills and hangs at any time: all processes end, and the run can be resumed."""

import signal

import pytest

from .running import SCRIPT, is_alive, launch, outcomes

pytestmark = pytest.mark.slow

TWO = ["--num-instances", 2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The result of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    ended = launch(*TWO, SCRIPT, folder, "--checkpoints", folder / "checkpoints")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return outcomes(folder, 2)


def process_ids(folder):
    return [int(file.read_text()) for file in folder.glob("pid-*")]


def starter(folder):
    """Write a script that kills itself before it joins the others, the first time it runs."""
    script = folder / "start.py"
    script.write_text(
        "import os, pathlib, runpy, signal, sys\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        "mark = folder / 'died'\n"
        "if os.environ['CONVOY_PROCESS'] == '1' and not mark.exists():\n"
        "    mark.touch()\n"
        "    print('about to join', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"sys.argv[0] = {str(SCRIPT)!r}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    return script


def test_a_process_killed_at_startup_ends_the_run(tmp_path):
    ended = launch(*TWO, starter(tmp_path), tmp_path)
    assert ended.returncode == 128 + signal.SIGKILL
    assert "process 1 on localhost" in ended.stderr
    assert "was terminated by SIGKILL" in ended.stderr
    assert "[1] about to join" in ended.stdout
    assert not list(tmp_path.glob("*.json"))
    assert not any(map(is_alive, process_ids(tmp_path)))


def test_a_process_killed_at_startup_is_restarted_with_the_others(tmp_path, whole):
    words = [tmp_path, "--checkpoints", tmp_path / "checkpoints"]
    ended = launch(*TWO, "--max-restarts", 1, starter(tmp_path), *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert outcomes(tmp_path, 2) == whole


def test_after_a_kill_during_a_save_the_previous_checkpoint_is_used(tmp_path, whole):
    words = [SCRIPT, tmp_path, "--checkpoints", tmp_path / "checkpoints", "--die-in-save"]
    ended = launch(*TWO, *words)
    assert ended.returncode == 128 + signal.SIGKILL, ended.stdout + ended.stderr
    assert "process 0 on localhost" in ended.stderr
    assert not any(map(is_alive, process_ids(tmp_path)))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir())
    assert len(names) == 2, names
    ended = launch(*TWO, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert outcomes(tmp_path, 2) == whole


def test_a_hung_process_ends_the_run_and_a_restart_gives_the_same_bits(tmp_path, whole):
    words = [SCRIPT, tmp_path, "--checkpoints", tmp_path / "checkpoints", "--die", "1:3:SIGSTOP"]
    ended = launch(*TWO, "--max-restarts", 1, "--heartbeat-timeout", 5, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "process 1 on localhost" in ended.stderr
    assert "stopped sending heartbeats" in ended.stderr
    assert outcomes(tmp_path, 2) == whole
    assert not any(map(is_alive, process_ids(tmp_path)))
