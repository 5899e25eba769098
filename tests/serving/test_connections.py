"""Connections that send nothing, too little or nonsense; a server with few descriptors."""

import json
import socket
import time

import pytest
from convoy.serving.versions import ModelConfig
from tests.serving.running import running

pytestmark = pytest.mark.integration

PREDICT = "/v1/models/half:predict"
ONE = {"instances": [1.0]}


@pytest.fixture
def half(half_plus_two):
    return [ModelConfig("half", half_plus_two)]


def connect(server):
    return socket.create_connection(("127.0.0.1", server.server.port), 60)


@pytest.mark.parametrize(
    "start", [b"", b"POST /v1/models/half:pred", b"GET / HTTP/1.1\r\nHost: x\r\n"]
)
def test_a_connection_without_a_complete_request_is_closed(half, start):
    with running(half, idle_seconds=0.3) as server, connect(server) as silent:
        silent.sendall(start)
        assert silent.recv(1000) == b""
        assert server.json(PREDICT, ONE)[0] == 200


def test_headers_that_arrive_slowly_do_not_extend_the_time(half):
    with running(half, idle_seconds=0.5) as server, connect(server) as slow:
        slow.settimeout(0.05)
        slow.sendall(b"GET / HTTP/1.1\r\n")
        began = time.monotonic()
        closed = False
        while not closed and time.monotonic() < began + 60:
            try:
                slow.sendall(b"A: b\r\n")
                closed = slow.recv(1000) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert closed


def test_new_connections_replace_silent_ones(half):
    with running(half, max_connections=20) as server:
        silent = [connect(server) for _ in range(60)]
        for _ in range(5):
            assert server.json(PREDICT, ONE)[0] == 200
        # A client that has sent requests keeps its connection.
        with connect(server) as known:
            request = f"GET {PREDICT[:-8]} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            known.sendall(request)
            assert known.recv(1000).startswith(b"HTTP/1.1 200")
            silent += [connect(server) for _ in range(60)]
            time.sleep(0.2)
            known.sendall(request)
            assert known.recv(1000).startswith(b"HTTP/1.1 200")
        for connection in silent:
            connection.close()


def test_malformed_requests_write_nothing_to_the_log(half, capfd, caplog):
    malformed = [b"\x16\x03\x01\x02", b"GET / HTTP/9\r\n\r\n", b"x" * 20_000 + b"\r\n\r\n"]
    malformed += [b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"]
    with running(half) as server:
        caplog.clear()
        capfd.readouterr()
        for data in malformed * 5:
            with connect(server) as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1000)
        deep = b'{"instances": ' + b"[" * 900 + b"]" * 900 + b"}"
        status, _, text = server.ask(PREDICT, deep)
        assert (status, "error" in json.loads(text)) == (400, True)
        assert capfd.readouterr().err == ""
        assert not [record for record in caplog.records if record.levelname != "INFO"]


def received(connection):
    """Return all that the server sends until it closes the connection."""
    parts = []
    while part := connection.recv(1000):
        parts.append(part)
    return b"".join(parts)


def test_a_client_that_closes_its_direction_gets_an_answer(half):
    body = json.dumps(ONE).encode()
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with running(half) as server:
        for sent, status in ((head + body, b"200"), (head + body[:-3], b"400")):
            with connect(server) as connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                answer = received(connection)
                assert answer.startswith(b"HTTP/1.1 " + status)
        with connect(server) as connection:
            connection.sendall(head[:20])
            connection.shutdown(socket.SHUT_WR)
            assert received(connection) == b""
