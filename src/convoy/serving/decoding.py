"""Threads that decode requests, so that the event loop and other clients' requests go on.

Small requests are decoded in the event loop, because passing them to a thread would take longer.
Expensive ones, such as long JSON texts and photographs, wait for one separate thread: however
many arrive, they take one core at most, and other requests do not queue behind them.
"""

import asyncio
import contextlib
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TypeVar

T = TypeVar("T")

# Requests of up to this size, and images of this number of pixels, are decoded in the event loop,
# in well under a millisecond.
INLINE_BYTES = INLINE_PIXELS = 1 << 14
# Images of more pixels are expensive.
CHEAP_PIXELS = 4_000_000

_max_pixels: ContextVar[float] = ContextVar("max_pixels", default=math.inf)


class ExpensiveError(Exception):
    """A request turned out to be too expensive for the thread that decodes it."""


def check_thread(pixels: int) -> None:
    """Check that this thread is the right one to decode an image.

    Raises:
        ExpensiveError: if it is not; `Decoders` then starts again in another one.
    """
    if pixels > _max_pixels.get():
        raise ExpensiveError


class Decoders:
    """The threads of a server that decode requests and encode responses."""

    def __init__(self) -> None:
        self._cheap = ThreadPoolExecutor(max(2, os.cpu_count() or 1), "convoy-decode")
        self._expensive = ThreadPoolExecutor(1, "convoy-decode-expensive")

    async def run(self, function: Callable[[], T], size: int, *, expensive: bool = False) -> T:
        """Return the result of a function that decodes a request or encodes a response.

        Args:
            function: the function. It is called again if it raises `ExpensiveError`.
            size: the number of bytes that it works on.
            expensive: whether it is known to be expensive.
        """
        if size <= INLINE_BYTES and not expensive:
            with contextlib.suppress(ExpensiveError):
                return _with_limit(function, INLINE_PIXELS)
        if not expensive:
            with contextlib.suppress(ExpensiveError):
                return await self._submit(function, expensive=False)
        return await self._submit(function, expensive=True)

    async def _submit(self, function: Callable[[], T], expensive: bool) -> T:
        context = copy_context()
        limit = math.inf if expensive else CHEAP_PIXELS
        threads = self._expensive if expensive else self._cheap
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            threads, lambda: context.run(_with_limit, function, limit)
        )

    def close(self) -> None:
        """Drop the requests that wait; those that are decoded finish."""
        for threads in (self._cheap, self._expensive):
            threads.shutdown(wait=False, cancel_futures=True)


def _with_limit(function: Callable[[], T], max_pixels: float) -> T:
    token = _max_pixels.set(max_pixels)
    try:
        return function()
    finally:
        _max_pixels.reset(token)
