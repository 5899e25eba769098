"""Threads that decode requests without blocking the event loop or other requests.

Small requests are decoded in the event loop, because passing them to a thread would take longer.
Expensive requests are decoded in two separate threads, one for long JSON texts and one for large
images, so that other requests do not queue behind them. The thread for images has a lower priority,
so that small requests get the cores first. The thread for texts has normal priority, because it
holds the GIL: the event loop would wait for a thread that waits for a core.
"""

import asyncio
import contextlib
import math
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TypeVar

from convoy.context import bound
from convoy.cpu.threads import cores
from convoy.serving.gil import long_work

T = TypeVar("T")

# Requests of up to this size, and images of this number of pixels, are decoded in the event loop,
# in well under a millisecond.
INLINE_BYTES = INLINE_PIXELS = 1 << 14
# Niceness of the thread for large images: it gets about a third of the time of another thread that
# needs the same core.
IMAGE_NICENESS = 5
# Images of more pixels are expensive.
CHEAP_PIXELS = 4_000_000

_max_pixels: ContextVar[float] = ContextVar("max_pixels", default=math.inf)


class ExpensiveError(Exception):
    """A request turned out to be too expensive for the thread that decodes it."""


def check_thread(pixels: int) -> None:
    """Check that this thread is the right one to decode an image.

    Raises:
        ExpensiveError: if it is not; `Decoders` then starts again in another thread.
    """
    if pixels > _max_pixels.get():
        raise ExpensiveError


class Decoders:
    """The threads of a server that decode requests and encode responses."""

    def __init__(self) -> None:
        self._cheap = ThreadPoolExecutor(max(2, cores()), "convoy-decode")
        self._texts = ThreadPoolExecutor(1, "convoy-decode-text")
        self._images = ThreadPoolExecutor(1, "convoy-decode-image", initializer=_lower_priority)

    async def run(self, function: Callable[[], T], size: int, *, expensive: bool = False) -> T:
        """Return the result of a function that decodes a request or encodes a response.

        Args:
            function: the function. It is called again if it raises `ExpensiveError`.
            size: the number of bytes that it works on.
            expensive: whether it parses a long text.
        """
        if size <= INLINE_BYTES and not expensive:
            with contextlib.suppress(ExpensiveError):
                return _with_limit(function, INLINE_PIXELS)
        with contextlib.suppress(ExpensiveError):
            return await self._submit(
                self._texts if expensive else self._cheap, function, CHEAP_PIXELS
            )
        return await self._submit(self._images, function, math.inf)

    async def _submit(
        self, threads: ThreadPoolExecutor, function: Callable[[], T], max_pixels: float
    ) -> T:
        context = copy_context()
        loop = asyncio.get_running_loop()

        def run() -> T:
            with long_work():
                return context.run(_with_limit, function, max_pixels)

        return await loop.run_in_executor(threads, run)

    def close(self) -> None:
        """Drop waiting requests; requests that are being decoded finish."""
        for threads in (self._cheap, self._texts, self._images):
            threads.shutdown(wait=False, cancel_futures=True)


def _lower_priority() -> None:
    """Lower the priority of this thread, if the system has thread priorities."""
    if sys.platform.startswith("linux"):
        thread = threading.get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread) + IMAGE_NICENESS
        os.setpriority(os.PRIO_PROCESS, thread, niceness)


def _with_limit(function: Callable[[], T], max_pixels: float) -> T:
    with bound(_max_pixels, max_pixels):
        return function()
