import contextlib
import json
import socket
import threading
from dataclasses import replace

import numpy as np
import pytest
from convoy.serving import client
from convoy.serving.client import (
    Address,
    GrpcClient,
    RequestError,
    RestClient,
    UnavailableError,
    _only_input,
    available_models,
    await_listener,
    await_model,
)


def clients(server, model):
    yield RestClient(Address("127.0.0.1", server.server.port, model))
    yield GrpcClient(Address("127.0.0.1", server.server.grpc_port, model))


def test_refusals_are_told(server):
    for one in clients(server, "half_plus_two"):
        with pytest.raises(RequestError, match="expected"):
            one.predict(np.zeros((1, 2), np.float32), 60)
        one.close()


def test_a_model_that_is_not_there_is_answered_with_those_that_are(server):
    there = r"\. The server has half_plus_two, half_plus_three, pictures"
    for name, question in (("picture", r"; did you mean pictures\?$"), ("none", r"\.$")):
        with pytest.raises(RequestError, match=rf"Latest\({name}\){there}{question}"):
            RestClient(Address("127.0.0.1", server.server.port, name))
        with pytest.raises(RequestError, match=rf"Latest\({name}\){there}{question}"):
            GrpcClient(Address("127.0.0.1", server.server.grpc_port, name))


def test_of_many_models_a_few_are_named():
    names = [f"model_{number}" for number in range(100)]
    said = available_models("modle_77", names)
    assert said == (f". The server has {', '.join(names[:8])}, ...; did you mean model_77?")
    assert available_models("model_77", names) == available_models("x", []) == ""


def test_models_with_several_inputs_are_named():
    with pytest.raises(RequestError, match="takes image and side; images can only be sent"):
        _only_input({"side": None, "image": None})


def test_a_server_that_does_not_listen_yet_is_awaited():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        messages = []

        def notify(message):
            messages.append(message)
            bound.listen()

        await_listener(Address("127.0.0.1", port, "x"), 60.0, notify)
        place = f"127.0.0.1:{port}"
        waiting = f"waiting for a server at {place} for at most 60 s (Ctrl-C stops this)"
        assert messages == [waiting]


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b"{}",
        b'{"metadata": 3}',
        b'{"metadata": {"signature_def": {"signature_def": {"serving_default": {"inputs": {}}}}}}',
        b"[" * 100_000,
        b"<html>",
        b"\xff",
    ],
)
@pytest.mark.parametrize("status", ["200 OK", "404 Not Found", "500 x"])
def test_a_server_of_another_kind_is_one_line(body, status):
    def answer(listener):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(10_000)
                    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n"
                    connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        with pytest.raises(RequestError) as raised:
            RestClient(Address("127.0.0.1", listener.getsockname()[1], "x"))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert "\n" not in str(raised.value)


def test_a_model_that_is_being_loaded_is_waited_for():
    info = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "2"}]}}
    signatures = {"serving_default": {"inputs": {"x": info}}}
    answers = [
        (503, {"error": "Model x is being loaded."}),
        (503, {"error": "Model x is being loaded."}),
        (200, {"metadata": {"signature_def": {"signature_def": signatures}}}),
    ]

    def answer(listener):
        for status, content in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(10_000)
                body = json.dumps(content).encode()
                head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n"
                connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)

    said = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        address = Address("127.0.0.1", listener.getsockname()[1], "x")
        await_model("rest", address, 60, said.append)
        thread.join()
    assert said == ["503: Model x is being loaded. Waiting for at most 60 s (Ctrl-C stops this)"]


def test_the_port_of_rest_is_refused_at_once_by_grpc(server):
    address = Address("127.0.0.1", server.server.port, "half_plus_two")
    with pytest.raises(RequestError) as raised:
        await_model("grpc", address, 60, print)
    assert str(raised.value) == (
        f"127.0.0.1:{address.port} does not speak gRPC; its default port is 8500. For REST, pass "
        "--protocol rest."
    )
    await_model("grpc", replace(address, port=server.server.grpc_port), 60, print)


def test_a_page_without_a_status_line_is_not_grpc_either():
    def answer(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(10_000)
            connection.sendall(b"<!DOCTYPE HTML>")  # as Python's http.server answers HTTP/2

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        with pytest.raises(RequestError, match="does not speak gRPC"):
            await_model("grpc", Address(*listener.getsockname(), "x"), 60, print)
        thread.join()


def test_a_server_that_does_not_answer_grpc_is_named_while_it_is_waited_for(monkeypatch):
    monkeypatch.setattr(client, "_PREFACE_SECONDS", 0.1)
    messages = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=f"{place} does not answer"):
            await_model("grpc", Address(*listener.getsockname(), "x"), 0.2, messages.append)
    assert messages == [f"{place} does not answer. Waiting for at most 0.2 s (Ctrl-C stops this)"]
