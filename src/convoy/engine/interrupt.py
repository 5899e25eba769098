"""Ctrl-C in the middle of a device call."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Uninterrupted:
    """Has Ctrl-C wait until the end of the block; a second one does not wait.

    A device call takes the values of the variables away and gives new ones back. In between they
    are nowhere, so an exception there would leave a model without weights.
    """

    def __init__(self) -> None:
        self._waiting = False
        self._previous: Any = None

    def __enter__(self) -> None:
        self._waiting = False
        self._previous = None
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._previous = handler
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._waiting:
            self._previous(number, frame)
        self._waiting = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is None:
            return
        signal.signal(signal.SIGINT, self._previous)
        if self._waiting and error is None:
            self._previous(signal.SIGINT, None)
