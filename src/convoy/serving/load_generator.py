"""Load generator: requests from several processes, and the measured throughput and latency."""

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from convoy.configuration import Configuration, Count, Option
from convoy.data.catalog import DATASETS, load
from convoy.serving.client import (
    CLIENTS,
    FIRST_SECONDS,
    Address,
    Client,
    RequestError,
)
from convoy.serving.signature import TensorSpec

BARRIER_SECONDS = 600.0
# Concurrent requests of one process in asynchronous mode.
MAX_IN_FLIGHT = 32

Batches = Callable[[int], np.ndarray]
"""Returns the images, or the labels, of a request by its number."""


DEFAULT_PORTS = {"grpc": 8500, "rest": 8501}


@dataclass(frozen=True)
class LoadOptions(Configuration, all_flags=True):
    """Options of the load, with the flags of `convoy request` for them.

    Attributes:
        model: name of the model
        host: host of the server
        port: default: 8500 for gRPC, 8501 for REST
        protocol: protocol
        token: the server's token (default: $CONVOY_SERVING_TOKEN)
        processes: number of processes that send requests
        num_images: images per process
        batch_size: images per request
        use_async: whether to send without waiting for responses
        request_seconds: timeout of a request
        dataset: send its test images (default: random images)
        dataset_path: folder of the dataset
        verbose: whether to print the latency of each request
    """

    model: str
    host: str = "127.0.0.1"
    port: int | None = None
    protocol: Annotated[str, Option(choices=tuple(DEFAULT_PORTS))] = "grpc"
    token: str | None = None
    processes: Count = 2
    num_images: Count = 1000
    batch_size: Count = 1
    use_async: bool = False
    request_seconds: float = 10.0
    dataset: Annotated[str | None, Option(choices=tuple(DATASETS))] = None
    dataset_path: str = "."
    verbose: bool = False

    @property
    def address(self) -> Address:
        port = DEFAULT_PORTS[self.protocol] if self.port is None else self.port
        return Address(self.host, port, self.model, self.token)

    @property
    def requests(self) -> int:
        """Number of requests per process."""
        return -(-self.num_images // self.batch_size)


@dataclass
class ProcessResult:
    """Measurements of one process."""

    began: float = 0.0
    ended: float = 0.0
    latencies: list[float] = field(default_factory=list)
    correct: int = 0
    labelled: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LoadResult:
    """Measurements of all processes together."""

    options: LoadOptions
    processes: tuple[ProcessResult, ...]

    @property
    def seconds(self) -> float:
        return max(p.ended for p in self.processes) - min(p.began for p in self.processes)

    @property
    def answered(self) -> int:
        """Number of successful requests."""
        return sum(len(process.latencies) for process in self.processes)

    @property
    def throughput(self) -> float:
        """Images per second."""
        return self.answered * self.options.batch_size / self.seconds

    @property
    def accuracy(self) -> float | None:
        labelled = sum(process.labelled for process in self.processes)
        return sum(process.correct for process in self.processes) / labelled if labelled else None

    @property
    def failures(self) -> list[str]:
        return [failure for process in self.processes for failure in process.failures]

    def milliseconds(self, *percentiles: float) -> list[float]:
        """Return percentiles of the latency."""
        latencies = [latency for process in self.processes for latency in process.latencies]
        return [1000 * float(value) for value in np.percentile(latencies, percentiles)]

    def lines(self) -> list[str]:
        """Return the report, line by line."""
        options = self.options
        total = options.requests * options.batch_size
        lines = [
            f"Full time in ms: {1000 * self.seconds:.2f}",
            f"Processed num_images * num_threads: {total} * {options.processes} = "
            f"{self.answered * options.batch_size}",
        ]
        if total != options.num_images:
            lines.append(
                f"Each process sent {total} images, not {options.num_images}: "
                f"{options.requests} full batches of {options.batch_size}"
            )
        lines.append(f"Average throughput: {self.throughput:.2f} samples/sec")
        if self.answered:
            p50, p95, p99 = self.milliseconds(50, 95, 99)
            lines.append(f"Latency in ms: p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f}")
        if self.accuracy is not None:
            lines.append(f"Accuracy: {self.accuracy:.2%}")
        if self.failures:
            lines.append(f"Failed requests: {len(self.failures)}; the first: {self.failures[0]}")
        return lines


def send_load(options: LoadOptions) -> LoadResult:
    """Send requests from several processes at once.

    Raises:
        RequestError: if the server cannot be reached, or a process failed.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(options.processes)
    results: Any = context.Queue()
    processes = [
        context.Process(target=_work, args=(options, index, barrier, results), daemon=True)
        for index in range(options.processes)
    ]
    for process in processes:
        process.start()
    received: list[ProcessResult] = []
    try:
        while len(received) < len(processes):
            result = results.get(timeout=BARRIER_SECONDS + FIRST_SECONDS)
            if isinstance(result, str):
                raise RequestError(result)
            received.append(result)
    finally:
        for process in processes:
            process.join(10) if len(received) == len(processes) else process.terminate()
    return LoadResult(options, tuple(received))


def _work(options: LoadOptions, index: int, barrier: Any, results: Any) -> None:
    try:
        client = CLIENTS[options.protocol](options.address)
        images, labels = _batches(options, client.input)
        client.predict(images(0), FIRST_SECONDS)
        barrier.wait(BARRIER_SECONDS)
        result = _send(options, client, images, labels, options.verbose and index == 0)
        client.close()
        results.put(result)
    except Exception as error:  # The main process raises it.
        barrier.abort()
        results.put(str(error) if isinstance(error, RequestError) else repr(error))


def _batches(options: LoadOptions, spec: TensorSpec) -> tuple[Batches, Batches | None]:
    """Return the images of each request, and their labels if known."""
    size = options.batch_size
    if options.dataset is None:
        rng = np.random.default_rng(0)
        values = rng.random((size, *spec.shape)) * (255 if spec.dtype == "uint8" else 1)
        images = values.astype(spec.numpy_dtype)
        return lambda _: images, None
    x, y = load(options.dataset, options.dataset_path).test
    if x.shape[1:] != spec.shape:
        raise RequestError(
            f"{options.dataset} has images of shape {list(x.shape[1:])}, and the model takes "
            f"{list(spec.shape)}."
        )
    if spec.dtype != "uint8":
        raise RequestError(f"The model takes {spec.dtype}; export it with its preprocessing.")

    def indices(number: int) -> np.ndarray:
        return np.arange(number * size, (number + 1) * size) % len(x)

    return lambda number: x[indices(number)], lambda number: y[indices(number)]


def _send(
    options: LoadOptions, client: Client, images: Batches, labels: Batches | None, verbose: bool
) -> ProcessResult:
    result = ProcessResult(began=time.time())

    def request(number: int) -> tuple[float, np.ndarray]:
        began = time.perf_counter()
        outputs = client.predict(images(number), options.request_seconds)
        return time.perf_counter() - began, outputs

    def record(number: int, latency: float, outputs: np.ndarray) -> None:
        result.latencies.append(latency)
        if labels is not None:
            expected = labels(number).reshape(-1)
            result.correct += int((outputs.argmax(-1) == expected).sum())
            result.labelled += len(expected)
        if verbose:
            print(f"-- Latency for batch: {1000 * latency:.2f} ms.", flush=True)

    with ThreadPoolExecutor(MAX_IN_FLIGHT if options.use_async else 1) as threads:
        futures = [threads.submit(request, number) for number in range(options.requests)]
        for number, future in enumerate(futures):
            try:
                record(number, *future.result())
            except RequestError as error:
                result.failures.append(str(error))
    result.ended = time.time()
    return result
