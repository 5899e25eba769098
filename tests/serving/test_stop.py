"""Stops of a server process by SIGTERM."""

import http.client
import json
import socket
import threading
import time

import convoy
import grpc
import pytest
from convoy.serving import tensorflow_serving_pb2 as messages
from tests.launch.running import wait_until
from tests.serving.http2 import RawConnection, message_start
from tests.serving.models import half_plus
from tests.serving.processes import serving

pytestmark = pytest.mark.integration

PREDICT = "/v1/models/half:predict"
# Without a trial of the version in another process, the server starts sooner.
DIRECTLY = ("--try-versions", "false")
# What waits for a request or a stop would wait for hours, on a busy machine too.
FOR_HOURS = ("--request-seconds", "36000", "--stop-seconds", "36000")
BODY = json.dumps({"instances": [1.0]}).encode()


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    convoy.export(half_plus(2), folder / "half", batch_sizes=[1, 4])
    return folder


def head(length):
    return f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


def keep_asking(server, outcomes):
    """Send requests until a connection is refused, and count those without an answer."""
    connection = server.connect()
    while True:
        try:
            connection.request("POST", PREDICT, BODY)
            response = connection.getresponse()
            outcomes.append((response.status, json.loads(response.read())["predictions"]))
        except ConnectionRefusedError:
            return
        except (OSError, http.client.HTTPException) as error:
            outcomes.append(repr(error))
            connection.close()


def call_until_unavailable(server, outcomes):
    request = messages.PredictRequest()
    request.model_spec.name = "half"
    request.inputs["x"].dtype = 1
    request.inputs["x"].float_val.append(1.0)
    request.inputs["x"].tensor_shape.dim.add(size=1)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        while True:
            try:
                call(request.SerializeToString(), timeout=60)
                outcomes.append("OK")
            except grpc.RpcError as error:
                outcomes.append(error.code().name)
                return


def test_every_request_at_a_stop_is_answered(half):
    with serving(half, *DIRECTLY, "--drain-seconds", "3", half=half / "half") as server:
        rest, calls = [], []
        threads = [threading.Thread(target=keep_asking, args=(server, rest)) for _ in range(4)]
        threads += [threading.Thread(target=call_until_unavailable, args=(server, calls))]
        for thread in threads:
            thread.start()
        with (
            socket.create_connection(("127.0.0.1", server.port), 60) as slow,
            socket.create_connection(("127.0.0.1", server.port), 60) as idle,
        ):
            slow.sendall(head(len(BODY)) + BODY[:5])
            while len(rest) < 20 or len(calls) < 5:
                time.sleep(0.01)
            server.process.terminate()
            # It is not ready for new clients, and answers those that it has.
            wait_until(lambda: server.get("/v2/health/ready")[0] == 503)
            slow.sendall(BODY[5:])
            answer = slow.recv(10_000)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"Connection: close" in answer
            idle.sendall(head(len(BODY)) + BODY)
            assert idle.recv(10_000).startswith(b"HTTP/1.1 200")
        assert server.process.wait(600) == 0
        for thread in threads:
            thread.join()
    assert set(map(str, rest)) == {str((200, [2.5]))}
    assert set(calls[:-1]) == {"OK"}
    assert calls[-1] == "UNAVAILABLE"


def test_a_stop_has_a_time_limit(half):
    with (
        serving(half, *DIRECTLY, *FOR_HOURS, "--stop-seconds", "1", half=half / "half") as server,
        socket.create_connection(("127.0.0.1", server.port), 60) as never,
    ):
        never.sendall(head(len(BODY)) + BODY[:5])
        time.sleep(0.2)
        assert server.stop(600) in (0, 1)


@pytest.mark.slow
def test_a_call_that_sends_nothing_does_not_delay_a_stop(half):
    with (
        serving(half, *DIRECTLY, *FOR_HOURS, half=half / "half") as server,
        RawConnection(server.grpc_port) as silent,
    ):
        silent.call(1)
        silent.call(3)
        silent.send({3: message_start(1000) + bytes(10)}, 0.5)
        assert server.stop(600) == 0
