"""SIGTERM and SIGINT: finish the device call, write a checkpoint, leave; at once if asked twice."""

from __future__ import annotations

import os
import signal
import socket
import threading
from types import FrameType
from typing import Any

from convoy_command import LEFT

EXIT_STATUS = LEFT
"""A run that was asked to leave ends with this."""

_HEARD = (signal.SIGTERM, signal.SIGINT)


class Left(SystemExit):
    """Ends a program that was asked to leave, after its checkpoint was written."""

    def __init__(self, message: str) -> None:
        super().__init__(EXIT_STATUS)
        self.message = message

    def __str__(self) -> str:
        return self.message


class Leaving:
    """Listens for signals from `begin` to `end`.

    Python runs its own handlers between two of its instructions, and a device call is one. So a
    second thread is told of each signal by the handler in C, and need not wait for the call.
    Signals can be heard from the main thread only: elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._before: dict[int, Any] = {}
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._previous_wakeup = -1

    def begin(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self.asked = None
        inner, outer = self._ends = socket.socketpair()
        outer.setblocking(False)
        self._previous_wakeup = signal.set_wakeup_fd(outer.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._note) for number in _HEARD}
        _active.add(self)
        threading.Thread(target=self._listen, args=(inner,), daemon=True).start()

    def end(self) -> None:
        if self._ends is None:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        _active.discard(self)
        self._ends[1].close()
        self._ends = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Do nothing: it is there so that Python's handler in C is."""

    def _listen(self, inner: socket.socket) -> None:
        with inner:
            while numbers := inner.recv(1):
                if numbers[0] not in _HEARD:
                    continue
                if self.asked is not None:
                    os._exit(128 + numbers[0])
                self.asked = signal.Signals(numbers[0])


_active: set[Leaving] = set()
_forking = threading.local()


def _hold_signals() -> None:
    """Have signals to a new process wait until it has its own way with them.

    One that came before would be written where we read ours, and taken for one to us.
    """
    if _active:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)


def _let_signals_in() -> None:
    if (mask := getattr(_forking, "mask", None)) is not None:
        _forking.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _forget_in_child() -> None:
    """Have worker processes end when told, and not tell us of it.

    Ctrl-C in a terminal reaches them too; they go on until their parent has read what it needs.
    """
    if _active:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    _let_signals_in()


os.register_at_fork(
    before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=_forget_in_child
)
