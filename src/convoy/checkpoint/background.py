"""One piece of work at a time, in a thread of its own, whose failure is not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs work while training goes on.

    The thread is not a daemon, so a program that ends by itself waits for it.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin some work; what was begun before must have been waited for."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="convoy-checkpoint")
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> Exception | None:
        """Wait for the work to end, and return what went wrong with it, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        return error
