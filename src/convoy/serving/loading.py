"""Loading of versions: a trial in another process, then the version itself, within a time limit.

Versions are loaded in daemon threads, so a thread that is blocked by a stalled disk delays neither
other versions nor the end of the process.
"""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from convoy.serving.errors import ArtifactError, describe_error
from convoy.serving.servable import Servable
from convoy.serving.trial import Trials

T = TypeVar("T")


async def run_in_daemon(function: Callable[[], T]) -> T:
    """Return the result of a function that runs in a daemon thread.

    If the caller is cancelled, the thread continues, and its result is dropped.

    Raises:
        Exception: what the function raises; `RuntimeError` in place of exceptions that a future
            cannot hold, or that would end the program.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(set_outcome: Callable[[], None]) -> None:
        if not future.done():
            set_outcome()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:  # A thread must not end without an outcome.
            outcome: BaseException = error
            if isinstance(error, StopIteration) or not isinstance(error, Exception):
                outcome = RuntimeError(describe_error(error))
            notify(lambda: future.set_exception(outcome))
        else:
            notify(lambda: future.set_result(result))

    def notify(set_outcome: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, set_outcome)

    threading.Thread(target=run, name="convoy-load", daemon=True).start()
    return await future


class Loader:
    """Loads versions.

    Args:
        seconds: maximum time to load a version.
        try_first: whether a version is first loaded in another process, so that a version that
            crashes or hangs does not affect this one.
    """

    def __init__(self, seconds: float = 600.0, *, try_first: bool = False) -> None:
        self._seconds = seconds
        self._trials = Trials() if try_first else None

    async def load(self, path: Path) -> Servable:
        """Load a version.

        Raises:
            ArtifactError: if it cannot be loaded, or not in time.
        """
        try:
            async with asyncio.timeout(self._seconds):
                if self._trials is not None:
                    await self._trials.run(path)
                return await run_in_daemon(lambda: Servable(path))
        except TimeoutError:
            raise ArtifactError(
                f"{path} was not loaded in {self._seconds:g} seconds. If it needs more, start the "
                "server with a larger --load-seconds."
            ) from None

    async def close(self) -> None:
        """End the processes that try versions."""
        if self._trials is not None:
            await self._trials.close()
