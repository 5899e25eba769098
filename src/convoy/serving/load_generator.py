"""Load generator: requests from several processes, and the measured throughput and latency."""

import multiprocessing
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from convoy.configuration import Configuration, Count, Option
from convoy.context import blocked
from convoy.data.augment import Transformation
from convoy.data.catalog import DATASETS, Split, load
from convoy.data.image_batches import BatchRequest, ImageBatchJob
from convoy.data.image_files import find_images
from convoy.serving.client import (
    CLIENTS,
    DEFAULT_PORTS,
    FIRST_SECONDS,
    Address,
    Client,
    RequestError,
)
from convoy.serving.errors import describe_error
from convoy.serving.signature import TensorSpec

# Time for the other processes to be ready; each may wait for the server to load the model.
BARRIER_SECONDS = FIRST_SECONDS
# Interval of reports about the progress.
PROGRESS_SECONDS = 1.0
# Maximum number of test images that are sent, over and over.
MAX_TEST_IMAGES = 2000
# Concurrent requests of one process in asynchronous mode.
MAX_IN_FLIGHT = 32

Batches = Callable[[int], np.ndarray]
"""Returns the images, or the labels, of a request by its number."""
Notify = Callable[[int, int], None]
"""Takes the numbers of requests that were answered or failed, and of all requests."""


@dataclass(frozen=True)
class LoadOptions(Configuration, all_flags=True):
    """Options of the load, with the flags of `convoy request` for them.

    Attributes:
        model: name of the model
        host: host of the server
        port: default: 8500 for gRPC, 8501 for REST
        protocol: API that is used
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

    @property
    def total(self) -> int:
        """Number of requests of all processes."""
        return self.requests * self.processes


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


def send_load(options: LoadOptions, notify: Notify | None = None) -> LoadResult:
    """Send requests from several processes at once.

    It ends when every request was answered, has failed or has reached its timeout.

    Args:
        options: options of the load.
        notify: function that is called every second while requests are sent.

    Raises:
        RequestError: if the server cannot be reached, or a process failed.
    """
    context = _context()
    barrier, done = context.Barrier(options.processes), context.Value("q", 0)
    with tempfile.TemporaryDirectory() as folder:
        if options.dataset is not None:
            _write_test_images(options, Path(folder))
        pipes = [context.Pipe(duplex=False) for _ in range(options.processes)]
        processes = [
            context.Process(
                target=_work, args=(options, folder, index, barrier, done, sender), daemon=True
            )
            for index, (_, sender) in enumerate(pipes)
        ]
        # Ctrl-C in a terminal reaches the processes while they start; this one ends them.
        with blocked(signal.SIGINT):
            for process in processes:
                process.start()
        receivers = [receiver for receiver, _ in pipes]
        finished = False
        try:
            received = _collect(
                processes, receivers, lambda: notify and notify(done.value, options.total)
            )
            finished = True
        finally:
            for process in processes:
                process.join(10) if finished else process.terminate()
    return LoadResult(options, tuple(received))


def _context() -> Any:
    """Return a way to start processes that imports the packages once, not in every process."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _collect(
    processes: Sequence[Any],
    receivers: Sequence[connection.Connection],
    notify: Callable[[], object],
) -> list[ProcessResult]:
    """Wait for the results of all processes.

    Raises:
        RequestError: if one of them failed, or ended without a result.
    """
    results: dict[int, ProcessResult] = {}
    aborted = ""
    while len(results) < len(processes):
        waiting = [index for index in range(len(processes)) if index not in results]
        handles = [receivers[index] for index in waiting]
        handles += [processes[index].sentinel for index in waiting]
        if not connection.wait(handles, PROGRESS_SECONDS):
            notify()
        for index in waiting:
            process, receiver = processes[index], receivers[index]
            if receiver.poll():
                result = receiver.recv()
                if isinstance(result, _Aborted):
                    aborted = str(result)
                    results[index] = ProcessResult()
                elif isinstance(result, str):
                    raise RequestError(result)
                else:
                    results[index] = result
            elif not process.is_alive() and not receiver.poll():
                raise RequestError(
                    f"A client process ended with status {process.exitcode}. Its errors are above; "
                    "it may have been killed for lack of memory."
                )
    if aborted:
        raise RequestError(aborted)
    notify()
    return list(results.values())


class _Aborted(str):
    """A message of a process that ended because of another one, which has the reason."""


def _work(
    options: LoadOptions, folder: str, index: int, barrier: Any, done: Any, sender: Any
) -> None:
    def count() -> None:
        with done.get_lock():
            done.value += 1

    try:
        client = CLIENTS[options.protocol](options.address)
        images, labels = _batches(options, client.input, Path(folder))
        client.predict(images(0), FIRST_SECONDS)
        barrier.wait(BARRIER_SECONDS)
        result = _send(options, client, images, labels, options.verbose and index == 0, count)
        client.close()
        sender.send(result)
    except threading.BrokenBarrierError:
        sender.send(_Aborted(f"Not all processes were ready within {BARRIER_SECONDS:g} seconds."))
    except Exception as error:  # The main process raises it.
        sender.send(str(error) if isinstance(error, RequestError) else describe_error(error))
        barrier.abort()


def _write_test_images(options: LoadOptions, folder: Path) -> None:
    """Write test images of a dataset to files that all processes read.

    Raises:
        RequestError: if the dataset is not there, or is damaged.
    """
    try:
        images, labels = _test_images(options)
    except ValueError as error:
        raise RequestError(str(error)) from None
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels)


def _test_images(options: LoadOptions) -> Split:
    assert options.dataset is not None
    count = min(MAX_TEST_IMAGES, options.requests * options.batch_size)
    if options.dataset != "imagenet":
        images, labels = load(options.dataset, options.dataset_path).test
        return images[:count], labels[:count]
    info, files = DATASETS[options.dataset], find_images(Path(options.dataset_path), "test")
    count = min(count, len(files))
    job = ImageBatchJob(files, count, Transformation(info, "bytes"), training=False)
    images = np.empty(job.shape, job.dtype)
    labels, _ = job.run(BatchRequest(np.arange(count), (0,)), images)
    return images, labels


def _batches(
    options: LoadOptions, spec: TensorSpec, folder: Path
) -> tuple[Batches, Batches | None]:
    """Return the images of each request, and their labels if known.

    Args:
        options: options of the load.
        spec: input of the model.
        folder: folder with the test images of a dataset.
    """
    size = options.batch_size
    if options.dataset is None:
        rng = np.random.default_rng(0)
        values = rng.random((size, *spec.shape)) * (255 if spec.dtype == "uint8" else 1)
        images = values.astype(spec.numpy_dtype)
        return lambda _: images, None
    x, y = np.load(folder / "images.npy", mmap_mode="r"), np.load(folder / "labels.npy")
    if x.shape[1:] != spec.shape:
        raise RequestError(
            f"--dataset {options.dataset} has images of shape {list(x.shape[1:])}, but the model "
            f"takes {list(spec.shape)}. Pass another dataset."
        )
    if spec.dtype != "uint8":
        raise RequestError(
            f"--dataset sends images of type uint8, but the model takes {spec.dtype}. Export it "
            "with its preprocessing."
        )

    def indices(number: int) -> np.ndarray:
        return np.arange(number * size, (number + 1) * size) % len(x)

    return lambda number: x[indices(number)], lambda number: y[indices(number)]


def _send(
    options: LoadOptions,
    client: Client,
    images: Batches,
    labels: Batches | None,
    verbose: bool,
    count: Callable[[], None] = lambda: None,
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
            count()
    result.ended = time.time()
    return result
