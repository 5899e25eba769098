"""Clients of a busy server, and clients that do not read or do not keep to the protocol."""

import contextlib
import json
import socket
import struct
import zlib

import convoy
import grpc
import keras
import pytest
from convoy.serving import tensorflow_serving_pb2 as messages
from convoy.serving.admission import AdmissionOptions
from convoy.serving.tensorflow_grpc import RETRY_KEY
from convoy.serving.versions import ModelConfig
from tests.launch.running import wait_until
from tests.serving.http2 import RESET, RawConnection, message_start
from tests.serving.models import half_plus
from tests.serving.running import running

pytestmark = pytest.mark.integration

VALUES = 500_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model whose answers are long, and with one whose answers are short."""
    folder = tmp_path_factory.mktemp("models")
    x = keras.Input((1,), name="x")
    models = {"long": keras.Model(x, keras.layers.RepeatVector(VALUES)(x)), "half": half_plus(2)}
    for name, model in models.items():
        convoy.export(model, folder / name, batch_sizes=[1, 4])
    return folder


@pytest.fixture
def configs(folder):
    return [ModelConfig(name, folder / name) for name in ("long", "half")]


def request_to(name, samples=1):
    request = messages.PredictRequest()
    request.model_spec.name = name
    tensor = request.inputs["x"]
    tensor.dtype = 1
    for size in (samples, 1) if name == "long" else (samples,):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.append(1.0)
    return request.SerializeToString()


def predict(server, request, **options):
    """Return the code of a call of Predict, its answer, and the metadata at its end."""
    with grpc.insecure_channel(server.grpc_address, [("grpc.max_receive_message_length", -1)]) as c:
        method = c.unary_unary("/tensorflow.serving.PredictionService/Predict")
        try:
            answer, call = method.with_call(request, timeout=600, **options)
        except grpc.RpcError as error:
            return error.code().name, None, dict(error.trailing_metadata() or ())
        return "OK", answer, dict(call.trailing_metadata() or ())


def is_served(server):
    return predict(server, request_to("half"))[0] == "OK"


def test_a_rejected_request_is_told_when_to_come_back(configs):
    with running(configs, admission=AdmissionOptions(max_requests=1)) as server:
        admission = server.server.service.admission
        admission.start("another client")
        status, headers, text = server.ask("/v1/models/half:predict", {"instances": [1.0]})
        assert (status, headers["Retry-After"]) == (429, "1")
        assert "Try again later." in json.loads(text)["error"]
        code, _, metadata = predict(server, request_to("half"))
        assert (code, metadata[RETRY_KEY]) == ("RESOURCE_EXHAUSTED", "1")


def test_answers_that_are_not_read_are_dropped_over_http(configs):
    body = json.dumps({"instances": [[1.0]] * 4}).encode()
    head = (
        f"POST /v1/models/long:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with running(configs, idle_seconds=0.5) as server, contextlib.ExitStack() as stack:
        sender = server.server._http._sender
        for _ in range(3):
            address = ("127.0.0.1", server.server.port)
            silent = stack.enter_context(socket.create_connection(address, 60))
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.sendall(head.encode() + body)
        wait_until(lambda: sender.unsent_bytes > 0)
        wait_until(lambda: sender.unsent_bytes == 0)
        assert server.json("/v1/models/half:predict", {"instances": [1.0]})[0] == 200


def test_answers_that_are_not_read_stay_charged_over_grpc(configs, monkeypatch):
    monkeypatch.setattr("convoy.serving.server.GRPC_AGE", 10)
    with running(configs, idle_seconds=0.5) as server:
        admission = server.server.service.admission
        content = request_to("long", samples=4)
        with RawConnection(server.server.grpc_port) as silent:
            silent.call(1)
            silent.send({1: message_start(len(content)) + content}, 1)
            silent.end(1)
            # The request is answered, but nothing of the answer is read.
            wait_until(lambda: admission.requests == 0 and admission.held_bytes > 4 * VALUES)
            assert is_served(server)
            # Its connection becomes too old.
            wait_until(lambda: admission.held_bytes == 0)


def test_answers_that_are_read_are_not_charged_any_more(configs):
    with running(configs) as server:
        code, answer, _ = predict(server, request_to("long", samples=4))
        assert code == "OK"
        assert len(messages.PredictResponse.FromString(answer).outputs) == 1
        wait_until(lambda: server.server.service.admission.held_bytes == 0)


def test_a_client_whose_connection_becomes_old_connects_again(configs, monkeypatch):
    monkeypatch.setattr("convoy.serving.server.GRPC_AGE", 10)
    connections = []
    with (
        running(configs, idle_seconds=0.05) as server,
        grpc.insecure_channel(server.grpc_address) as channel,
    ):
        channel.subscribe(connections.append)
        method = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        while connections.count(grpc.ChannelConnectivity.READY) < 4:
            try:
                assert method(request_to("half"), timeout=600, wait_for_ready=True)
            except grpc.RpcError as error:
                # The call began while the connection ended.
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise


def test_a_compressed_message_is_limited_by_its_decompressed_size(configs):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join([packer.compress(bytes(64 << 20)), packer.flush()])
    assert len(packed) < 100_000
    with (
        running(configs, admission=AdmissionOptions(max_request_bytes=1 << 20)) as server,
        RawConnection(server.server.grpc_port) as connection,
    ):
        connection.call(1, **{"grpc-encoding": "gzip"})
        connection.send({1: message_start(len(packed), compressed=True) + packed}, 1)
        connection.end(1)
        wait_until(lambda: connection.receive(1) or 1 in connection.closed)
        assert is_served(server)
        wait_until(lambda: server.server.service.admission.held_bytes == 0)


def test_calls_that_are_reset_at_once_leave_nothing_behind(configs):
    with running(configs) as server, RawConnection(server.server.grpc_port) as connection:
        for stream in range(1, 1000, 2):
            connection.call(stream)
            reset = struct.pack(">I", 4)[1:] + struct.pack(">BBII", RESET, 0, stream, 8)
            try:
                connection.socket.sendall(reset)
            except OSError:
                break  # the server has closed the connection
            connection.receive(0)
        assert is_served(server)
        admission = server.server.service.admission
        wait_until(lambda: admission.held_bytes == admission.requests == 0)


def test_a_connection_that_never_speaks_grpc_is_closed(configs):
    with running(configs, idle_seconds=0.3) as server:
        address = ("127.0.0.1", server.server.grpc_port)
        with socket.create_connection(address, 60) as silent:
            while silent.recv(1000):
                pass
        assert is_served(server)
