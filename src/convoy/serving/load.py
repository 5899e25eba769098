"""Load on a server from several processes, and what it took."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from convoy.data.catalog import load
from convoy.serving.client import CLIENTS, FIRST_SECONDS, Address, Client, RequestError
from convoy.serving.signature import Tensor

BARRIER_SECONDS = 600.0
# Requests of one process that are on their way at the same time, if it does not wait for each.
IN_FLIGHT = 32


@dataclass(frozen=True)
class LoadOptions:
    """What is sent, and how.

    Attributes:
        address: where to.
        protocol: `grpc` or `rest`.
        processes: that send at the same time.
        images: that each process sends.
        batch_size: images of one request.
        later: whether to send on without waiting for answers.
        seconds: after which a request is given up.
        dataset: whose held-out images are sent, with their labels; by default made-up ones.
        dataset_path: where the data set is.
        verbose: whether the first process tells the latency of each request.
    """

    address: Address
    protocol: str = "grpc"
    processes: int = 2
    images: int = 1000
    batch_size: int = 1
    later: bool = False
    seconds: float = 10.0
    dataset: str | None = None
    dataset_path: str = "."
    verbose: bool = False

    @property
    def requests(self) -> int:
        return -(-self.images // self.batch_size)


@dataclass
class Share:
    """What one process saw."""

    began: float = 0.0
    ended: float = 0.0
    latencies: list[float] = field(default_factory=list)
    correct: int = 0
    judged: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What all processes saw together."""

    options: LoadOptions
    shares: tuple[Share, ...]

    @property
    def seconds(self) -> float:
        return max(s.ended for s in self.shares) - min(s.began for s in self.shares)

    @property
    def answered(self) -> int:
        return sum(len(share.latencies) for share in self.shares)

    @property
    def throughput(self) -> float:
        """Images per second."""
        return self.answered * self.options.batch_size / self.seconds

    @property
    def accuracy(self) -> float | None:
        judged = sum(share.judged for share in self.shares)
        return sum(share.correct for share in self.shares) / judged if judged else None

    @property
    def failures(self) -> list[str]:
        return [failure for share in self.shares for failure in share.failures]

    def milliseconds(self, *percentiles: float) -> list[float]:
        latencies = [latency for share in self.shares for latency in share.latencies]
        return [1000 * float(value) for value in np.percentile(latencies, percentiles)]


def send_load(options: LoadOptions) -> Outcome:
    """Send requests from several processes at once.

    Raises:
        RequestError: if the server cannot be reached, or a process ended before its time.
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
    shares: list[Share] = []
    try:
        while len(shares) < len(processes):
            outcome = results.get(timeout=BARRIER_SECONDS + FIRST_SECONDS)
            if isinstance(outcome, str):
                raise RequestError(outcome)
            shares.append(outcome)
    finally:
        for process in processes:
            process.join(10) if len(shares) == len(processes) else process.terminate()
    return Outcome(options, tuple(shares))


def _work(options: LoadOptions, index: int, barrier: Any, results: Any) -> None:
    try:
        client = CLIENTS[options.protocol](options.address)
        images, labels = _batches(options, client.input)
        client.predict(images(0), FIRST_SECONDS)
        barrier.wait(BARRIER_SECONDS)
        share = _send(options, client, images, labels, options.verbose and index == 0)
        client.close()
        results.put(share)
    except Exception as error:  # told to the process that waits for the outcome
        barrier.abort()
        results.put(str(error) if isinstance(error, RequestError) else repr(error))


Batches = Callable[[int], np.ndarray]


def _batches(
    options: LoadOptions, tensor: Tensor
) -> tuple[Batches, Callable[[int], np.ndarray] | None]:
    """Return what gives the images of a request by its number, and their labels if known."""
    size = options.batch_size
    if options.dataset is None:
        rng = np.random.default_rng(0)
        made_up = rng.random((size, *tensor.shape)) * (255 if tensor.dtype == "uint8" else 1)
        images = made_up.astype(tensor.numpy_dtype)
        return lambda _: images, None
    x, y = load(options.dataset, options.dataset_path).test
    if x.shape[1:] != tensor.shape:
        raise RequestError(
            f"{options.dataset} has images of shape {list(x.shape[1:])}, and the model takes "
            f"{list(tensor.shape)}."
        )
    if tensor.dtype != "uint8":
        raise RequestError(f"The model takes {tensor.dtype}; export it with its preprocessing.")

    def places(number: int) -> np.ndarray:
        return np.arange(number * size, (number + 1) * size) % len(x)

    return lambda number: x[places(number)], lambda number: y[places(number)]


def _send(
    options: LoadOptions,
    client: Client,
    images: Batches,
    labels: Callable[[int], np.ndarray] | None,
    verbose: bool,
) -> Share:
    share = Share(began=time.time())

    def ask(number: int) -> tuple[float, np.ndarray]:
        began = time.perf_counter()
        answer = client.predict(images(number), options.seconds)
        return time.perf_counter() - began, answer

    def note(number: int, latency: float, answer: np.ndarray) -> None:
        share.latencies.append(latency)
        if labels is not None:
            expected = labels(number).reshape(-1)
            share.correct += int((answer.argmax(-1) == expected).sum())
            share.judged += len(expected)
        if verbose:
            print(f"-- Latency for batch: {1000 * latency:.2f} ms.", flush=True)

    width = IN_FLIGHT if options.later else 1
    flying: deque[tuple[int, Future[tuple[float, np.ndarray]]]] = deque()
    with ThreadPoolExecutor(width) as threads:
        for number in range(options.requests + width):
            if len(flying) == width or number >= options.requests:
                if not flying:
                    break
                landed, future = flying.popleft()
                try:
                    note(landed, *future.result())
                except RequestError as error:
                    share.failures.append(str(error))
            if number < options.requests:
                flying.append((number, threads.submit(ask, number)))
    share.ended = time.time()
    return share
