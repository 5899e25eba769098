"""Connections that send nothing, too little or nonsense; a server with few descriptors."""

import gzip
import json
import os
import socket
import time
from contextlib import ExitStack

import pytest
from convoy.serving.admission import AdmissionOptions
from convoy.serving.versions import ModelConfig
from tests.launch.running import wait_until
from tests.serving.running import running
from tests.serving.soak import resident_megabytes

pytestmark = pytest.mark.integration

PREDICT = "/v1/models/half:predict"
ONE = {"instances": [1.0]}


@pytest.fixture
def half(half_plus_two):
    return [ModelConfig("half", half_plus_two)]


def is_served(server):
    """Whether a request is answered; a busy machine may not send one before an idle time ends."""
    try:
        return server.json(PREDICT, ONE)[0] == 200
    except OSError:
        return False


def connect(server):
    return socket.create_connection(("127.0.0.1", server.server.port), 60)


@pytest.mark.parametrize(
    "start", [b"", b"POST /v1/models/half:pred", b"GET / HTTP/1.1\r\nHost: x\r\n"]
)
def test_a_connection_without_a_complete_request_is_closed(half, start):
    with running(half, idle_seconds=0.3) as server, connect(server) as silent:
        silent.sendall(start)
        assert silent.recv(1000) == b""
        wait_until(lambda: is_served(server))


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


INCOMPLETE = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode()


def begin_requests(server, count, stack):
    """Open connections, and send the beginning of a request on each."""
    for _ in range(count):
        stack.enter_context(connect(server)).sendall(INCOMPLETE)
    active = server.server._http._active
    wait_until(lambda: len(active) >= min(count, server.server._max_connections - 1))


def test_incomplete_requests_do_not_count_as_handled(half):
    limits = AdmissionOptions(max_requests=4)
    with running(half, admission=limits) as server, ExitStack() as stack:
        begin_requests(server, 12, stack)
        assert server.json(PREDICT, ONE)[0] == 200
        assert server.server.service.admission.requests == 0


def test_new_connections_replace_those_with_incomplete_requests(half):
    with running(half, max_connections=20) as server, ExitStack() as stack:
        begin_requests(server, 40, stack)
        for _ in range(5):
            assert server.json(PREDICT, ONE)[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6",
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: +5",
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length : 5",
        "POST {path} HTTP/1.1\r\nHost: x\r\n Content-Length: 5",
        "POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked",
        "GET / HTTP/1.1\r\nHost: x\r\nA\0: b",
        "GET / HTTP/1.1\r\nHost: x\r\n" + "A" * 10_000 + ": b",
        "GET / HTTP/9",
        "\x16\x03\x01\x02\0",
    ],
    ids=[
        *("length-and-chunked", "two-lengths", "signed-length", "space-before-colon"),
        *("continued-line", "unknown-coding", "null-in-name", "long-name", "version", "tls"),
    ],
)
def test_an_ambiguous_or_malformed_request_gets_an_error_in_json_and_ends_its_connection(
    half, head
):
    request = head.format(path=PREDICT).encode("latin-1") + b"\r\n\r\nabcde"
    after = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    with running(half) as server, connect(server) as connection:
        connection.sendall(request + after)
        answer, _, body = received(connection).partition(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400") or answer.startswith(b"HTTP/1.0 400")
    assert b"application/json" in answer
    assert json.loads(body)["error"].startswith("Malformed request")


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "x"])
@pytest.mark.parametrize("path", [PREDICT, "/v2/models/half/infer"])
def test_an_unknown_encoding_of_a_body_is_refused(half, path, encoding):
    with running(half) as server:
        headers = {"Content-Encoding": encoding}
        status, reply, text = server.ask(path, ONE, headers=headers)
        assert (status, reply["Content-Type"]) == (415, "application/json")
        assert "gzip, deflate" in json.loads(text)["error"]


def test_a_compressed_body_that_is_too_large_is_refused_before_it_is_decompressed(half):
    limits = AdmissionOptions(max_request_bytes=1 << 20)
    packed = gzip.compress(b'{"instances": [1.0' + b" " * (200 << 20) + b"]}")
    assert len(packed) < 1 << 20
    with running(half, admission=limits) as server:
        before = resident_megabytes(os.getpid())
        status, _, text = server.ask(PREDICT, packed, headers={"Content-Encoding": "gzip"})
        assert (status, "more than" in json.loads(text)["error"]) == (413, True)
        assert resident_megabytes(os.getpid()) - before < 50
        small = gzip.compress(json.dumps(ONE).encode())
        assert server.ask(PREDICT, small, headers={"Content-Encoding": "gzip"})[0] == 200
