"""A bounded part of `make fuzz`: generated requests, and connections that are cut at every byte."""

import asyncio
import os
import socket
import struct

import pytest
from tests.launch.running import wait_until
from tests.serving.processes import OtherClient, serving

from .requests import intact_request
from .run import export
from .server import ServerFuzz

pytestmark = pytest.mark.integration

REQUESTS = 400
# The kinds of requests run side by side, at their own speed.
REQUESTS_OF_A_KIND = 10
MAX_REQUESTS = 20 * REQUESTS


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    with serving(folder, **export(folder)) as process:
        yield process
        assert process.stop() == 0


def test_generated_requests_are_refused_while_good_clients_are_served(server):
    def goes_on(sent):
        fewest = min(counter.total() for counter in fuzz.answers.values())
        return sent < REQUESTS or (fewest <= REQUESTS_OF_A_KIND and sent < MAX_REQUESTS)

    fuzz = ServerFuzz(server, seed=0, goes_on=goes_on)
    asyncio.run(fuzz.run())
    assert not fuzz.faults, fuzz.faults[0]
    assert all(counter.total() > REQUESTS_OF_A_KIND for counter in fuzz.answers.values())
    assert set(fuzz.good) == {"right"}


def open_connections(server):
    folder = f"/proc/{server.process.pid}/fd"
    return sum("socket" in os.readlink(f"{folder}/{name}") for name in os.listdir(folder))


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_requests_cut_at_every_byte_leave_nothing_behind(server, reset):
    request = intact_request(server.port)
    lines = len(server.log.read_text().splitlines())
    with OtherClient(server) as other:
        other.request()
        before = open_connections(server)
        for length in range(len(request)):
            with socket.create_connection(("127.0.0.1", server.port), 60) as client:
                client.sendall(request[:length])
                if reset:
                    linger = struct.pack("ii", 1, 0)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        other.request()
        assert not other.failures
        wait_until(lambda: open_connections(server) <= before)
    assert len(server.log.read_text().splitlines()) == lines
