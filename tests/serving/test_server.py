import asyncio
import http.client
import json
import socket
import threading
import time
from dataclasses import replace

import grpc
import pytest
from convoy.serving import tensorflow_serving_pb2 as messages
from convoy.serving.admission import AdmissionOptions
from convoy.serving.versions import ModelConfig
from tests.launch.running import wait_until
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
    assert server.server._http.addresses == ["127.0.0.1"]


@pytest.mark.parametrize(("name", "flag"), [("port", "--port"), ("grpc_port", "--grpc-port")])
def test_a_port_that_is_in_use_is_named(name, flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = f"127.0.0.1:{port} cannot be used: .* Pass another {flag}"
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


def test_a_request_has_a_largest_size_and_a_longest_time(half):
    with running(
        half, admission=AdmissionOptions(max_request_bytes=1000), request_seconds=1.0
    ) as server:
        status, answer = server.json(PREDICT, {"instances": [1.0] * 1000})
        assert (status, answer["error"]) == (
            413,
            "The request has more than 1000 bytes. Send fewer samples.",
        )
        # Others are answered; on a busy machine not always in a second.
        wait_until(lambda: server.json(PREDICT, ONE)[0] == 200)
        with socket.create_connection(("127.0.0.1", server.server.port), 600) as slow:
            slow.sendall(
                f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{".encode()
            )
            answer = slow.recv(1000)
            assert answer.startswith(b"HTTP/1.1 504 ")
        wait_until(lambda: server.json(PREDICT, ONE)[0] == 200)


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
