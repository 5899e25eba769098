import asyncio
import http.client
import json
import socket
import ssl
import subprocess
import threading
import time
from dataclasses import replace

import grpc
import pytest
from convoy.serving import tensorflow_serving_pb2 as messages
from convoy.serving.versions import ModelConfig
from tests import parts
from tests.serving.running import running

pytestmark = pytest.mark.integration


@pytest.fixture
def half(half_plus_two):
    return [ModelConfig("half", half_plus_two)]


PREDICT = "/v1/models/half:predict"
ONE = {"instances": [1.0]}


def test_the_addresses_are_told_before_models_are_loaded(half, caplog):
    caplog.set_level("INFO", "convoy.serving")
    with running(half) as server:
        http, grpc_ = server.server.port, server.server.grpc_port
    told = [record.getMessage() for record in caplog.records]
    assert told[:2] == [
        "listening, and loading half: REST and the page: "
        f"http://127.0.0.1:{http}/; gRPC: 127.0.0.1:{grpc_}",
        "half: loading version 123",
    ]


def test_listens_on_this_machine_only(server):
    assert server.server._runner.addresses[0][0] == "127.0.0.1"


@pytest.mark.parametrize(("name", "flag"), [("port", "--port"), ("grpc_port", "--grpc-port")])
def test_a_port_that_is_in_use_is_named(name, flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = f"127.0.0.1:{port} cannot be listened on: .* Pass another {flag}"
        with pytest.raises(OSError, match=message), running([], **{name: port}):
            pass


def test_metrics_and_status(server):
    server.ask("/v1/models/half_plus_two:predict", ONE)
    server.ask("/v1/models/made-up:predict", ONE)
    status, _, text = server.ask("/monitoring/prometheus/metrics")
    assert status == 200
    lines = text.decode()
    assert 'convoy_requests_total{code="OK",method="predict",model="half_plus_two"}' in lines
    assert 'convoy_requests_total{code="NOT_FOUND",method="predict",model=""}' in lines
    assert 'convoy_available_versions{model="half_plus_two"} 2.0' in lines
    assert "made-up" not in lines
    status, answer = server.json("/status.json")
    names = {model["name"]: model for model in answer["models"]}
    assert names["pictures"]["takes_images"]
    assert not names["half_plus_two"]["takes_images"]
    assert set(names["half_plus_two"]["milliseconds"]) == {"p50", "p95", "p99"}


def test_a_token_is_asked_for(half):
    with running(half, token="secret") as server:
        assert server.json(PREDICT, ONE)[0] == 401
        wrong = {"Authorization": "Bearer other"}
        assert server.json(PREDICT, ONE, headers=wrong)[0] == 401
        right = {"Authorization": "Bearer secret"}
        assert server.json(PREDICT, ONE, headers=right) == (200, {"predictions": [3.5]})
        assert server.ask("/")[0] == 200
        assert server.ask("/v2/health/live")[0] == 200
        assert server.ask("/status.json")[0] == 401
        request = messages.GetModelStatusRequest()
        request.model_spec.name = "half"
        with grpc.insecure_channel(server.grpc_address) as channel:
            call = channel.unary_unary("/tensorflow.serving.ModelService/GetModelStatus")
            with pytest.raises(grpc.RpcError) as error:
                call(request.SerializeToString(), timeout=600)
            assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
            sent = (("authorization", "Bearer secret"),)
            assert call(request.SerializeToString(), timeout=60, metadata=sent)


def test_a_request_has_a_largest_size_and_a_longest_time(half):
    with running(half, max_request_bytes=1000, request_seconds=1.0) as server:
        status, answer = server.json(PREDICT, {"instances": [1.0] * 1000})
        assert (status, answer["error"]) == (413, "A request has at most 1000 bytes.")
        assert server.json(PREDICT, ONE)[0] == 200
        with socket.create_connection(("127.0.0.1", server.server.port), 600) as slow:
            slow.sendall(
                f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{".encode()
            )
            answer = slow.recv(1000)
            assert answer.startswith(b"HTTP/1.1 504 ")
        assert server.json(PREDICT, ONE)[0] == 200


@parts.needs("openssl")
def test_tls(half, tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    with running(half, tls_certificate=certificate, tls_key=key) as server:
        context = ssl.create_default_context(cafile=certificate)
        connection = http.client.HTTPSConnection("127.0.0.1", server.server.port, context=context)
        connection.request("POST", PREDICT, json.dumps(ONE))
        assert json.loads(connection.getresponse().read()) == {"predictions": [3.5]}
        connection.close()
        trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(f"localhost:{server.server.grpc_port}", trusted) as channel:
            call = channel.unary_unary("/tensorflow.serving.ModelService/GetModelStatus")
            request = messages.GetModelStatusRequest()
            request.model_spec.name = "half"
            assert call(request.SerializeToString(), timeout=600)


def is_open(port):
    try:
        socket.create_connection(("127.0.0.1", port), 600).close()
    except OSError:
        return False
    return True


def test_a_stop_answers_what_was_accepted(half):
    with running(half) as server:
        loaded = server.server.service.models["half"].find()
        entered, go_on = threading.Event(), threading.Event()
        machine = loaded.batcher._machine

        def held(arrays):
            entered.set()
            assert go_on.wait(600)
            return machine.run(arrays)

        loaded.batcher._machine = replace(machine, run=held)
        connection = http.client.HTTPConnection("127.0.0.1", server.server.port, timeout=600)
        connection.request("POST", PREDICT, json.dumps(ONE))
        assert entered.wait(600)
        stopping = asyncio.run_coroutine_threadsafe(server.server.stop(), server.loop)
        try:
            while is_open(server.server.port):
                time.sleep(0.1)
            assert not stopping.done()
        finally:
            go_on.set()
        assert json.loads(connection.getresponse().read()) == {"predictions": [3.5]}
        connection.close()
        stopping.result(600)


def test_models_can_be_changed_if_it_is_allowed(half, half_plus_two):
    with running(half, allow_reload=True) as server:
        request = messages.ReloadConfigRequest()
        entry = request.config.model_config_list.config.add(
            name="other", base_path=str(half_plus_two)
        )
        entry.model_version_policy.specific.versions.append(1)
        entry.version_labels["canary"] = 1
        with grpc.insecure_channel(server.grpc_address) as channel:
            call = channel.unary_unary("/tensorflow.serving.ModelService/HandleReloadConfigRequest")
            call(request.SerializeToString(), timeout=600)
        assert server.json(PREDICT, ONE)[0] == 404
        path = "/v1/models/other/labels/canary:predict"
        assert server.json(path, ONE) == (200, {"predictions": [2.5]})
