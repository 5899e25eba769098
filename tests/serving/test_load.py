"""Requests from processes, counted and timed."""

import socket

import numpy as np
import pytest
from convoy.cli import request
from convoy.cli.request import report
from convoy.serving.client import (
    Address,
    GrpcClient,
    RequestError,
    RestClient,
    _only_input,
    await_listener,
    served_instead,
)
from convoy.serving.load import LoadOptions, Outcome, Share, _batches, _send, send_load
from convoy_command import cli


def clients(server, model):
    yield RestClient(Address("127.0.0.1", server.server.port, model))
    yield GrpcClient(Address("127.0.0.1", server.server.grpc_port, model))


@pytest.mark.parametrize("later", [False, True])
def test_every_request_is_counted(server, pictures, later):
    for client in clients(server, "pictures"):
        options = LoadOptions(None, images=50, batch_size=2, later=later)
        images, labels = _batches(options, client.input)
        assert labels is None
        share = _send(options, client, images, lambda number: np.array([0, 1]), False)
        client.close()
        assert (len(share.latencies), share.judged, share.failures) == (25, 50, [])
        best = pictures[1](images(0) / np.float32(255)).argmax(1)
        assert share.correct == 25 * int((np.asarray(best) == [0, 1]).sum())


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
    said = served_instead("modle_77", names)
    assert said == (f". The server has {', '.join(names[:10])}, ...; did you mean model_77?")
    assert served_instead("model_77", names) == served_instead("x", []) == ""


def test_models_with_several_inputs_are_named():
    with pytest.raises(RequestError, match="The model takes image and side, and images are sent"):
        _only_input({"side": None, "image": None})


def test_a_server_that_is_not_there_is_waited_for_and_named(monkeypatch, capsys):
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(request, "LISTENER_SECONDS", 0.0)
        assert cli.main(["request", "--model", "x", "--port", place.split(":")[1]]) == 1
        said = capsys.readouterr().err
        assert said == (
            f"convoy request: error: {place} cannot be reached: Connection refused. Start convoy "
            "serve, or pass --host and --port.\n"
        )
        told = []

        def tell(message):
            told.append(message)
            taken.listen()

        await_listener(Address("127.0.0.1", int(place.split(":")[1]), "x"), 60.0, tell)
        waiting = f"waiting for a server at {place} for at most 60 s (Ctrl-C stops this)"
        assert told == [waiting]


def test_the_report_adds_processes_up(capsys):
    options = LoadOptions(None, processes=2, images=3, batch_size=2)
    shares = [Share(10.0, 11.0, [0.1, 0.3], 3, 4), Share(10.5, 12.0, [0.2, 0.2], 1, 4, ["429"])]
    outcome = Outcome(options, tuple(shares))
    assert (outcome.seconds, outcome.throughput, outcome.accuracy) == (2.0, 4.0, 0.5)
    report(outcome)
    assert capsys.readouterr().out.splitlines() == [
        "Full time in ms: 2000.00",
        "Processed num_images * num_threads: 4 * 2 = 8",
        "Each process sent 4 images, not 3: 2 whole batches of 2",
        "Average throughput: 4.00 samples/sec",
        "Latency in ms: p50 200.00, p95 285.00, p99 297.00",
        "Accuracy: 50.00%",
        "Failed requests: 1; the first: 429",
    ]


@pytest.mark.slow
def test_processes_send_at_the_same_time(server):
    address = Address("127.0.0.1", server.server.grpc_port, "pictures")
    outcome = send_load(LoadOptions(address, processes=2, images=20))
    assert (outcome.answered, outcome.failures) == (40, [])
    with pytest.raises(RequestError):
        send_load(LoadOptions(Address("127.0.0.1", server.server.grpc_port, "none"), processes=1))
