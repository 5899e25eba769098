"""A server process goes on serving when the system around it fails."""

import os
import signal
import subprocess
from pathlib import Path

import convoy
import pytest
from tests.checkpoint.conftest import fill
from tests.launch.running import wait_until
from tests.serving.models import half_plus
from tests.serving.processes import OtherClient, serving, wait_for

pytestmark = pytest.mark.integration

FAST = ("--poll-seconds", "0.2")


@pytest.fixture
def half(tmp_path):
    convoy.export(half_plus(2), tmp_path / "half", batch_sizes=[1])
    return tmp_path / "half"


def check(server, answer):
    with OtherClient(server, answer=[answer]) as client:
        client.request()
        assert not client.failures


def test_a_full_disk_for_compiled_programs_and_the_log(half, small_disk, monkeypatch):
    monkeypatch.setenv("CONVOY_COMPILATION_CACHE", str(small_disk / "programs"))
    with serving(small_disk, *FAST, half=half) as server:
        check(server, 2.5)
        fill(small_disk)
        convoy.export(half_plus(5), half, batch_sizes=[1])
        wait_for(server, "half", 2, "AVAILABLE")
        check(server, 5.5)
        assert server.stop() == 0


def test_folders_that_are_read_only(half, small_disk, tmp_path, monkeypatch):
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("CONVOY_COMPILATION_CACHE", str(programs))
    folders = (half, programs)
    for folder in folders:
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    try:
        with serving(tmp_path, *FAST, half=half) as server:
            check(server, 2.5)
            assert server.stop() == 0
    finally:
        for folder in folders:
            subprocess.run(["umount", folder], check=True)


def trial_of(server):
    """Return the id of the process that tries versions."""
    children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    (trial,) = [p for p in pids if b"trial" in Path(f"/proc/{p}/cmdline").read_bytes()]
    return trial


def test_a_killed_trial_is_repeated(half, tmp_path):
    with serving(tmp_path, *FAST, half=half) as server:
        trial = trial_of(server)
        # It is idle, and holds the next version until it is killed.
        os.kill(trial, signal.SIGSTOP)
        convoy.export(half_plus(5), half, batch_sizes=[1])
        wait_for(server, "half", 2, "LOADING")
        os.kill(trial, signal.SIGKILL)
        wait_until(lambda: "(SIGKILL)" in server.log.read_text())
        wait_for(server, "half", 2, "AVAILABLE")
        check(server, 5.5)
        assert server.stop() == 0
