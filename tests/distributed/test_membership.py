"""Joining the processes of a run."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import convoy
import pytest
from convoy.distributed.process import ADDRESS, COORDINATOR, COUNT, HEARTBEAT, INDEX, LAST_HEARTBEAT

pytestmark = pytest.mark.integration

SOURCE = Path(convoy.__file__).parents[1]


def start(program, place, count=2, coordinator="127.0.0.1:1", **settings):
    """Start a process that is told to be one of several."""
    environment = os.environ | {
        "PYTHONPATH": str(SOURCE),
        COORDINATOR: coordinator,
        COUNT: str(count),
        INDEX: str(place),
        ADDRESS: "127.0.0.1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def free_address():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_port_that_is_taken_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        first = start("import convoy", 0, coordinator=address)
        printed, _ = first.communicate(timeout=600)
    assert first.returncode != 0
    assert f"{address} cannot be used" in printed


@pytest.mark.slow
def test_other_versions_in_another_process_are_refused_by_all():
    program = (
        "import os, importlib.metadata as m\n"
        "own, place = m.version, os.environ['CONVOY_PROCESS']\n"
        "m.version = lambda name: own(name) + (place if name == 'keras' else '')\n"
        "import convoy\n"
    )
    address = free_address()
    both = [start(program, place, coordinator=address) for place in range(2)]
    for process in both:
        printed, _ = process.communicate(timeout=600)
        assert process.returncode != 0
        assert "Process 1 has another version than process 0: keras is" in printed


def test_the_last_heartbeat_announces_that_python_ends():
    source, heartbeat = os.pipe()
    with open(source, "rb") as beats:
        environment = os.environ | {"PYTHONPATH": str(SOURCE), HEARTBEAT: str(heartbeat)}
        command = [sys.executable, "-c", "import convoy"]
        subprocess.run(command, env=environment, pass_fds=[heartbeat], check=True)
        os.close(heartbeat)
        received = beats.read().decode()
    assert received.startswith(".")
    assert received.endswith(LAST_HEARTBEAT)
