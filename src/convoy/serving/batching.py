"""Dynamic batching: concurrent requests are joined into one call of the model.

While the model runs, requests wait in a queue. The next call takes as many requests as fit into the
best batch size for the queue, and pads with zeros. If a larger batch hardly reduces the time per
sample, as on most CPUs, requests are computed one by one, so that the first request does not wait
for the last.

A single request runs on all cores. If at least as many requests wait as there are cores, a CPU has
a higher throughput when each core computes its own request: no core waits for the others at the end
of a layer. The queue is then served by several streams of one core each, unless the model is so
small that the overhead of a call dominates:

    few requests     |  request 1, on all cores  |  request 2, on all cores  |
    many requests    |  request 1, on core 0          |  request 3           |
                     |  request 2, on core 1          |  request 4           |

A request larger than a batch is computed in parts. Each part is queued as if it had arrived at the
time when the earlier parts could be finished, so that requests that arrive in between do not wait
for all parts.
"""

import asyncio
import bisect
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from convoy.configuration import Configuration, Count
from convoy.serving.batch_sizes import BatchSizes
from convoy.serving.errors import Code, ServingError, describe_error, exhausted
from convoy.serving.signature import Arrays

Run = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class BatchOptions(Configuration, all_flags=True):
    """Options of batching, with the flags of `convoy serve` for them.

    With a timeout of 0, a call takes the requests that arrived while the previous one ran.

    batching and limits:
        max_batch_size: maximum samples per call (default: the largest exported batch size)
        batch_timeout_micros: how long a request waits for others to join its batch (default: 0)
        max_enqueued_samples: maximum waiting samples; requests beyond are refused (default: 1000)
    """

    max_batch_size: Count | None = None
    batch_timeout_micros: int = 0
    max_enqueued_samples: Count = 1000


@dataclass(frozen=True)
class Streams:
    """Parts of the machine that compute batches independently of each other.

    Attributes:
        count: number of streams.
        run: function that computes a batch in one stream.
        seconds: time of one batch in a stream, by batch size.
    """

    count: int
    run: Run
    seconds: Mapping[int, float]


@dataclass(frozen=True, eq=False)
class _Executor:
    """The whole machine, or one of its streams."""

    run: Run
    sizes: BatchSizes


@dataclass(eq=False)
class _Entry:
    """A request in the queue, or a part of a request that is larger than a batch.

    Attributes:
        turn: time that determines its position in the queue; later than `arrived` for all parts of
            a request except the first.
    """

    arrays: Arrays
    samples: int
    batch_size: int
    arrived: float
    turn: float
    outputs: asyncio.Future[Arrays]


class Batcher:
    """The queue of one version of a model. All methods must be called in its event loop.

    Args:
        run: function that computes a batch; it is called in another thread.
        seconds: time of one batch, by batch size.
        options: the options.
        observe: function that is called with the number of samples and the batch size of each call.
        streams: streams, used if they have a higher throughput; `None` if the machine has only one.
    """

    def __init__(
        self,
        run: Run,
        seconds: Mapping[int, float],
        options: BatchOptions,
        observe: Callable[[int, int], None],
        streams: Streams | None = None,
    ) -> None:
        self._options = options
        self._observe = observe
        self._machine = _Executor(run, BatchSizes(seconds, options.max_batch_size))
        self._stream: _Executor | None = None
        self._streams = 1
        if streams:
            sizes = BatchSizes(streams.seconds, options.max_batch_size, streams.count)
            if sizes.throughput > self._machine.sizes.throughput:
                self._stream = _Executor(streams.run, sizes)
                self._streams = streams.count
        self._running: list[_Executor] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._queue: list[_Entry] = []
        self._samples = 0
        self._changed = asyncio.Event()
        self._closing = False
        self._threads = ThreadPoolExecutor(self._streams, "convoy-serving")
        self._task = asyncio.get_running_loop().create_task(self._serve())

    @property
    def waiting_samples(self) -> int:
        return self._samples

    async def submit(self, arrays: Arrays, samples: int) -> Arrays:
        """Return the outputs for a request's samples.

        Raises:
            ServingError: if the queue is full, or the model failed.
        """
        limit = self._options.max_enqueued_samples
        if self._samples + samples > limit:
            raise exhausted(
                f"The queue is full: {self._samples} samples are waiting, and the limit is "
                f"{limit}. Try again later.",
                self._samples / self._machine.sizes.throughput,
            )
        loop = asyncio.get_running_loop()
        entries, start = list[_Entry](), 0
        now = time.monotonic()
        for size in self._machine.sizes.cover(samples):
            part = {name: array[start : start + size] for name, array in arrays.items()}
            count = min(size, samples - start)
            turn = now + start / self._machine.sizes.throughput
            entries.append(_Entry(part, count, size, now, turn, loop.create_future()))
            start += size
        for entry in entries:
            bisect.insort(self._queue, entry, key=lambda entry: entry.turn)
        self._samples += samples
        self._changed.set()
        try:
            outputs = await asyncio.gather(*(entry.outputs for entry in entries))
        except BaseException:
            # The client disconnected, the deadline passed, or the model failed for a part.
            self._drop(entries)
            raise
        if len(outputs) == 1:
            return outputs[0]
        return {name: np.concatenate([part[name] for part in outputs]) for name in outputs[0]}

    def _drop(self, entries: Sequence[_Entry]) -> None:
        """Remove the parts of a request that are still in the queue."""
        for entry in entries:
            entry.outputs.cancel()
        self._queue = [entry for entry in self._queue if not entry.outputs.done()]
        self._samples = sum(entry.samples for entry in self._queue)
        self._changed.set()

    async def close(self) -> None:
        """Compute all queued requests, then stop."""
        self._closing = True
        self._changed.set()
        await self._task
        self._threads.shutdown()

    async def _serve(self) -> None:
        while self._queue or self._running or not self._closing:
            executor = self._free_executor()
            if executor is None:
                await self._wait(None)
            elif (seconds := self._remaining_timeout()) > 0:
                await self._wait(seconds)
            else:
                self._begin(executor)

    def _free_executor(self) -> _Executor | None:
        """Return the executor on which the next batch of the queue can begin now."""
        if not self._queue:
            return None
        stream = self._stream
        # With fewer requests than streams, cores would be idle and each request would take longer.
        fills_streams = len(self._queue) + len(self._running) >= self._streams
        if stream and fills_streams and self._queue[0].batch_size <= stream.sizes.largest:
            return stream if self._free_streams() else None
        return None if self._running else self._machine

    def _free_streams(self) -> int:
        return 0 if self._machine in self._running else self._streams - len(self._running)

    def _begin(self, executor: _Executor) -> None:
        samples = self._samples
        if executor is self._stream:
            samples = -(-samples // self._free_streams())
        size, batch = self._take(executor.sizes, samples)
        self._observe(sum(entry.samples for entry in batch), size)
        self._running.append(executor)
        task = asyncio.get_running_loop().create_task(self._run_batch(executor, size, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_batch(self, executor: _Executor, size: int, batch: Sequence[_Entry]) -> None:
        loop = asyncio.get_running_loop()
        try:
            outputs = await loop.run_in_executor(self._threads, _compute, executor.run, size, batch)
        except Exception as error:  # The model's program can raise anything.
            failure = ServingError(Code.INTERNAL, f"The model failed: {describe_error(error)}")
            for entry in batch:
                if not entry.outputs.done():
                    entry.outputs.set_exception(failure)
        else:
            for entry, arrays in zip(batch, outputs, strict=True):
                if not entry.outputs.done():
                    entry.outputs.set_result(arrays)
        finally:
            self._running.remove(executor)
            self._changed.set()

    async def _wait(self, seconds: float | None) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _remaining_timeout(self) -> float:
        """Return the seconds that the first request still waits for others."""
        if self._closing or self._samples >= self._machine.sizes.efficient:
            return 0.0
        timeout = self._options.batch_timeout_micros / 1e6
        return self._queue[0].arrived + timeout - time.monotonic()

    def _take(self, sizes: BatchSizes, samples: int) -> tuple[int, list[_Entry]]:
        """Remove the requests of the next batch from the queue.

        Args:
            sizes: batch sizes of the executor.
            samples: approximate number of samples to take; the first request is always taken.

        Returns:
            The batch size and the requests.
        """
        size = sizes.efficient
        while True:
            best = sizes.cover(min(samples, size))[0]
            size = max(best, self._queue[0].batch_size)
            batch = self._fitting(size)
            samples = sum(entry.samples for entry in batch)
            # The requests that fit may also fit into a smaller batch size.
            if size == self._queue[0].batch_size or sizes.cover(samples)[0] >= size:
                break
        del self._queue[: len(batch)]
        self._samples -= samples
        return size, batch

    def _fitting(self, size: int) -> list[_Entry]:
        batch = []
        for entry in self._queue:
            size -= entry.samples
            if size < 0:
                break
            batch.append(entry)
        return batch


def _compute(run: Run, size: int, batch: Sequence[_Entry]) -> list[Arrays]:
    inputs = {
        name: _padded([entry.arrays[name] for entry in batch], size) for name in batch[0].arrays
    }
    outputs = run(inputs)
    parts, start = [], 0
    for entry in batch:
        stop = start + entry.samples
        parts.append({name: value[start:stop] for name, value in outputs.items()})
        start = stop
    return parts


def _padded(arrays: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Concatenate arrays along the batch, and pad with zeros to a batch size."""
    missing = size - sum(map(len, arrays))
    if not missing:
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    shape = (missing, *arrays[0].shape[1:])
    return np.concatenate([*arrays, np.zeros(shape, arrays[0].dtype)])
