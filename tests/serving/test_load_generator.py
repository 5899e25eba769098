"""Requests of several processes, counted and timed."""

import numpy as np
import pytest
from convoy.serving.client import Address, GrpcClient, RequestError, RestClient
from convoy.serving.load_generator import (
    LoadOptions,
    LoadResult,
    ProcessResult,
    _batches,
    _send,
    send_load,
)


def clients(server, model):
    yield RestClient(Address("127.0.0.1", server.server.port, model))
    yield GrpcClient(Address("127.0.0.1", server.server.grpc_port, model))


@pytest.mark.parametrize("use_async", [False, True])
def test_every_request_is_counted(server, pictures, use_async):
    for client in clients(server, "pictures"):
        options = LoadOptions("pictures", num_images=50, batch_size=2, use_async=use_async)
        images, labels = _batches(options, client.input)
        assert labels is None
        result = _send(options, client, images, lambda number: np.array([0, 1]), False)
        client.close()
        assert (len(result.latencies), result.labelled, result.failures) == (25, 50, [])
        best = pictures[1](images(0) / np.float32(255)).argmax(1)
        assert result.correct == 25 * int((np.asarray(best) == [0, 1]).sum())


def test_the_report_adds_processes_up():
    options = LoadOptions("x", processes=2, num_images=3, batch_size=2)
    results = [
        ProcessResult(10.0, 11.0, [0.1, 0.3], 3, 4),
        ProcessResult(10.5, 12.0, [0.2, 0.2], 1, 4, ["429"]),
    ]
    result = LoadResult(options, tuple(results))
    assert (result.seconds, result.throughput, result.accuracy) == (2.0, 4.0, 0.5)
    assert result.lines() == [
        "Full time in ms: 2000.00",
        "Processed num_images * num_threads: 4 * 2 = 8",
        "Each process sent 4 images, not 3: 2 full batches of 2",
        "Average throughput: 4.00 samples/sec",
        "Latency in ms: p50 200.00, p95 285.00, p99 297.00",
        "Accuracy: 50.00%",
        "Failed requests: 1; the first: 429",
    ]


@pytest.mark.slow
def test_processes_send_at_the_same_time(server):
    port = server.server.grpc_port
    result = send_load(LoadOptions("pictures", port=port, processes=2, num_images=20))
    assert (result.answered, result.failures) == (40, [])
    with pytest.raises(RequestError):
        send_load(LoadOptions("none", port=port, processes=1))
