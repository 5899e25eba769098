"""A delay of Ctrl-C for the time in which a model has no values."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class Uninterrupted:
    """A context that delays Ctrl-C until the end of the block; a second one takes effect at once.

    A device call takes the values of the variables away and returns new ones. An exception in
    between would leave the model without weights.
    """

    def __init__(self) -> None:
        self._is_pending = False
        self._previous: Callable[[int, FrameType | None], object] | None = None

    def __enter__(self) -> None:
        self._is_pending = False
        self._previous = None
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._previous = handler
            signal.signal(signal.SIGINT, self._postpone)

    def _postpone(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending and self._previous is not None:
            self._previous(number, frame)
        self._is_pending = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is None:
            return
        signal.signal(signal.SIGINT, self._previous)
        if self._is_pending and error is None:
            self._previous(signal.SIGINT, None)
