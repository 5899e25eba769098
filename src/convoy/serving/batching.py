"""Requests that come at the same time, answered by one call of the model.

While the model runs, requests wait in a queue; the next call takes as many of them as fit into the
size of batch that is best for what waits. It is filled up with zeros where need be. Where a larger
batch is hardly cheaper for each of its samples, as on most CPUs, requests are computed one by one:
the first of them need not wait for the last.

One request has the whole machine. Where as many wait as there are cores, a CPU computes more of
them in a second if each core has its own than if all work on each: nobody waits for the slower half
of a layer. So they are divided over lanes, unless the model is so small that calls take longer than
it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from convoy.serving.errors import Code, ServingError
from convoy.serving.signature import Arrays
from convoy.serving.sizes import Sizes

Run = Callable[[Arrays], Arrays]
Observe = Callable[[int, int], None]


@dataclass(frozen=True)
class BatchOptions:
    """How requests are put together.

    Attributes:
        max_batch_size: most samples of one call; by default the largest size of the model.
        timeout: seconds that the first of a batch waits for others. With 0, a call takes what came
            while the one before it ran.
        max_enqueued_samples: samples that may wait. A request beyond is refused at once.
    """

    max_batch_size: int | None = None
    timeout: float = 0.0
    max_enqueued_samples: int = 1000


@dataclass(frozen=True)
class Lanes:
    """Parts of the machine, each of which can compute a batch while the others do.

    Attributes:
        count: how many.
        run: computes a batch in one of them.
        seconds: how long it takes there for each size of batch.
    """

    count: int
    run: Run
    seconds: Mapping[int, float]


@dataclass(frozen=True, eq=False)
class _Part:
    """What computes a batch: the whole machine, or a lane."""

    run: Run
    sizes: Sizes


@dataclass(eq=False)
class _Waiting:
    arrays: Arrays
    samples: int
    size: int  # of the batch that it fits into
    arrived: float
    answer: asyncio.Future[Arrays]


class Batcher:
    """The queue in front of one version of a model. All methods are for its event loop.

    Args:
        run: computes a batch of one of the sizes; called in a thread of its own.
        seconds: how long it takes for each size of batch that it can compute.
        options: how to put requests together.
        observe: is told the samples and the size of every batch.
        lanes: where several requests are computed side by side, if that is faster.
    """

    def __init__(
        self,
        run: Run,
        seconds: Mapping[int, float],
        options: BatchOptions,
        observe: Observe,
        lanes: Lanes | None = None,
    ) -> None:
        self._options = options
        self._observe = observe
        self._whole = _Part(run, Sizes(seconds, options.max_batch_size))
        self._lane: _Part | None = None
        self._lanes = 1
        if lanes:
            lane = _Part(lanes.run, Sizes(lanes.seconds, options.max_batch_size, lanes.count))
            if lane.sizes.rate > self._whole.sizes.rate:
                self._lane, self._lanes = lane, lanes.count
        self._running: list[_Part] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._queue: deque[_Waiting] = deque()
        self._samples = 0
        self._changed = asyncio.Event()
        self._closing = False
        self._threads = ThreadPoolExecutor(self._lanes, "convoy-serving")
        self._task = asyncio.get_running_loop().create_task(self._serve())

    @property
    def waiting_samples(self) -> int:
        return self._samples

    async def submit(self, arrays: Arrays, samples: int) -> Arrays:
        """Return the outputs for a request's samples.

        Raises:
            ServingError: if too many samples wait already, or the model failed.
        """
        if self._samples + samples > max(self._options.max_enqueued_samples, samples):
            raise ServingError(
                Code.RESOURCE_EXHAUSTED,
                f"The queue is full: {self._samples} samples wait, and "
                f"{self._options.max_enqueued_samples} may. Try again later.",
            )
        loop = asyncio.get_running_loop()
        parts, start = [], 0
        for size in self._whole.sizes.to_hold(samples):
            part = {name: array[start : start + size] for name, array in arrays.items()}
            count = min(size, samples - start)
            parts.append(_Waiting(part, count, size, time.monotonic(), loop.create_future()))
            start += size
        self._queue.extend(parts)
        self._samples += samples
        self._changed.set()
        answers = await asyncio.gather(*(part.answer for part in parts))
        if len(answers) == 1:
            return answers[0]
        return {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}

    async def close(self) -> None:
        """Answer what waits, then stop."""
        self._closing = True
        self._changed.set()
        await self._task
        self._threads.shutdown()

    async def _serve(self) -> None:
        while self._queue or self._running or not self._closing:
            part = self._free_part()
            if part is None:
                await self._wait(None)
            elif (seconds := self._time_for_more()) > 0:
                await self._wait(seconds)
            else:
                self._begin(part)

    def _free_part(self) -> _Part | None:
        """Return the part of the machine in which a batch of what waits can begin now."""
        # Nobody computes for those that left.
        self._queue = deque(waiting for waiting in self._queue if not waiting.answer.done())
        self._samples = sum(waiting.samples for waiting in self._queue)
        if not self._queue:
            return None
        lane = self._lane
        # With fewer requests than lanes, cores would be idle, and each request take longer.
        fills_lanes = len(self._queue) + len(self._running) >= self._lanes
        if lane and fills_lanes and self._queue[0].size <= lane.sizes.largest:
            return lane if self._free_lanes() else None
        return None if self._running else self._whole

    def _free_lanes(self) -> int:
        return 0 if self._whole in self._running else self._lanes - len(self._running)

    def _begin(self, part: _Part) -> None:
        share = -(-self._samples // self._free_lanes()) if part is self._lane else self._samples
        size, batch = self._take(part.sizes, share)
        self._observe(sum(waiting.samples for waiting in batch), size)
        self._running.append(part)
        task = asyncio.get_running_loop().create_task(self._answer(part, size, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, part: _Part, size: int, batch: Sequence[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(
                self._threads, self._compute, part.run, size, batch
            )
        except Exception as error:  # whatever the model's program raised
            failure = ServingError(Code.INTERNAL, f"The model failed: {error}")
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(failure)
        else:
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)
        finally:
            self._running.remove(part)
            self._changed.set()

    async def _wait(self, seconds: float | None) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _time_for_more(self) -> float:
        """Return the seconds that the first of a batch still waits for others."""
        if self._closing or self._samples >= self._whole.sizes.enough:
            return 0.0
        return self._queue[0].arrived + self._options.timeout - time.monotonic()

    def _take(self, sizes: Sizes, samples: int) -> tuple[int, list[_Waiting]]:
        """Take requests off the queue, as many as fit into a size, and return both.

        Args:
            sizes: that there are programs for.
            samples: how many to take, about; the first request is always taken.
        """
        size = sizes.enough
        while True:
            best = sizes.to_hold(min(samples, size))[0]
            size = max(best, self._queue[0].size)
            batch = self._fitting(size)
            samples = sum(waiting.samples for waiting in batch)
            # Those that fit may be so few that a smaller size holds them as well.
            if size == self._queue[0].size or sizes.to_hold(samples)[0] >= size:
                break
        for _ in batch:
            self._queue.popleft()
        self._samples -= samples
        return size, batch

    def _fitting(self, size: int) -> list[_Waiting]:
        batch = []
        for waiting in self._queue:
            size -= waiting.samples
            if size < 0:
                break
            batch.append(waiting)
        return batch

    def _compute(self, run: Run, size: int, batch: Sequence[_Waiting]) -> list[Arrays]:
        inputs = {
            name: _filled([waiting.arrays[name] for waiting in batch], size)
            for name in batch[0].arrays
        }
        outputs = run(inputs)
        answers, start = [], 0
        for waiting in batch:
            stop = start + waiting.samples
            answers.append({name: value[start:stop] for name, value in outputs.items()})
            start = stop
        return answers


def _filled(arrays: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Put arrays together along the batch, and fill up with zeros."""
    missing = size - sum(map(len, arrays))
    if not missing:
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    shape = (missing, *arrays[0].shape[1:])
    return np.concatenate([*arrays, np.zeros(shape, arrays[0].dtype)])
