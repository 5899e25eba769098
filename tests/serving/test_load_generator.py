"""Requests of several processes, counted and timed."""

import multiprocessing
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from convoy.data import load
from convoy.serving import load_generator
from convoy.serving.client import Address, GrpcClient, RequestError, RestClient
from convoy.serving.load_generator import (
    LoadOptions,
    LoadResult,
    ProcessResult,
    _Aborted,
    _batches,
    _collect,
    _send,
    _test_images,
    _write_test_images,
    send_load,
)
from convoy.serving.signature import TensorSpec
from tests.data.pictures import write_folders


def clients(server, model):
    yield RestClient(Address("127.0.0.1", server.server.port, model))
    yield GrpcClient(Address("127.0.0.1", server.server.grpc_port, model))


@pytest.mark.parametrize("use_async", [False, True])
def test_every_request_is_counted(server, pictures, use_async, tmp_path):
    for client in clients(server, "pictures"):
        options = LoadOptions("pictures", num_images=50, batch_size=2, use_async=use_async)
        images, labels = _batches(options, client.input, tmp_path)
        assert labels is None
        count = Mock()
        result = _send(options, client, images, lambda _: np.array([0, 1]), False, count)
        client.close()
        assert count.call_count == 25
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


class Processes:
    """Stand-ins for processes, and the pipes through which they send results."""

    def __init__(self, count):
        self.pipes = [multiprocessing.Pipe(duplex=False) for _ in range(count)]
        self.ends = [multiprocessing.Pipe(duplex=False) for _ in range(count)]
        self.processes = [
            SimpleNamespace(sentinel=end, is_alive=lambda: True, exitcode=None)
            for end, _ in self.ends
        ]

    def send(self, index, result):
        self.pipes[index][1].send(result)

    def kill(self, index):
        process = self.processes[index]
        process.is_alive, process.exitcode = (lambda: False), -9
        self.ends[index][1].close()

    def collect(self, notify=lambda: None):
        return _collect(self.processes, [receiver for receiver, _ in self.pipes], notify)


def test_a_load_has_no_time_limit_and_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr(load_generator, "PROGRESS_SECONDS", 0.001)
    processes, calls = Processes(2), []
    processes.send(0, ProcessResult(latencies=[0.1]))

    def notify():
        calls.append(1)
        if len(calls) == 3:
            processes.send(1, ProcessResult(latencies=[0.2, 0.3]))

    found = processes.collect(notify)
    assert [len(result.latencies) for result in found] == [1, 2]
    assert len(calls) == 4  # and once at the end


def test_the_process_with_the_reason_is_the_one_that_is_quoted():
    processes = Processes(3)
    processes.send(0, _Aborted("Not all processes were ready."))
    processes.send(2, "NOT_FOUND: no such model")
    with pytest.raises(RequestError, match="no such model"):
        processes.collect()
    processes = Processes(1)
    processes.send(0, _Aborted("Not all processes were ready."))
    with pytest.raises(RequestError, match="Not all processes were ready"):
        processes.collect()


def test_a_process_that_was_killed_ends_the_load():
    processes = Processes(2)
    processes.kill(1)
    with pytest.raises(RequestError, match="ended with status -9"):
        processes.collect()


def test_test_images_of_a_dataset_are_sent(tmp_path):
    options = LoadOptions("x", dataset="digits", num_images=7, batch_size=2)
    _write_test_images(options, tmp_path)
    x, y = load("digits").test
    images, labels = _batches(options, TensorSpec("image", "uint8", (8, 8, 1)), tmp_path)
    for number in (0, 3, 4):  # the fifth request begins again
        rows = [2 * number % 8, (2 * number + 1) % 8]
        np.testing.assert_array_equal(images(number), x[rows])
        np.testing.assert_array_equal(labels(number), y[rows])
    with pytest.raises(RequestError, match="no such folder"):
        _write_test_images(replace(options, dataset="mnist", dataset_path="/nowhere"), tmp_path)


@pytest.mark.slow
def test_test_images_of_imagenet_are_decoded(tmp_path):
    write_folders(tmp_path)
    options = LoadOptions("x", dataset="imagenet", dataset_path=str(tmp_path), num_images=9)
    images, labels = _test_images(options)
    assert (images.shape, images.dtype) == ((6, 224, 224, 3), np.uint8)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.slow
def test_processes_send_at_the_same_time(server):
    port, progress = server.server.grpc_port, []
    options = LoadOptions("pictures", port=port, processes=2, num_images=20)
    result = send_load(options, lambda done, total: progress.append((done, total)))
    assert (result.answered, result.failures) == (40, [])
    assert progress[-1] == (40, 40)
    with pytest.raises(RequestError):
        send_load(LoadOptions("none", port=port, processes=1))
