import socket

import numpy as np
import pytest
from convoy.serving.client import (
    Address,
    GrpcClient,
    RequestError,
    RestClient,
    _only_input,
    available_models,
    await_listener,
)


def clients(server, model):
    yield RestClient(Address("127.0.0.1", server.server.port, model))
    yield GrpcClient(Address("127.0.0.1", server.server.grpc_port, model))


def test_refusals_are_told(server):
    for client in clients(server, "half_plus_two"):
        with pytest.raises(RequestError, match="expected"):
            client.predict(np.zeros((1, 2), np.float32), 60)
        client.close()


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
    assert said == (f". The server has {', '.join(names[:10])}, ...; did you mean model_77?")
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
