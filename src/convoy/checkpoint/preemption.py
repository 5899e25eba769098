"""Preemption by SIGTERM and SIGINT: the run saves a checkpoint and exits.

The first signal lets the running device call end; then a checkpoint is written and the process
exits. The second signal ends the process at once.

Python runs its own signal handlers between two bytecode instructions, and a device call is a single
one. So the C-level handler writes each signal to a socket (the "wakeup file descriptor"), and a
second thread reads it while the main thread is still in the device call:

    signal --> C handler --> socket --> listening thread --> `Preemption.signal`
                                              |
                                              +-- second signal: exit at once
"""

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from convoy import distributed
from convoy_command import LEFT

EXIT_STATUS = LEFT
"""Exit status of a preempted run."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Preempted(SystemExit):
    """Ends a preempted program after its checkpoint is written."""

    def __init__(self, message: str) -> None:
        super().__init__(EXIT_STATUS)
        self.message = message

    def __str__(self) -> str:
        return self.message


class Preemption:
    """Listens for signals from `begin` to `end`.

    Signals can be received in the main thread only; in others, this does nothing.

    Attributes:
        signal: the signal that was received, if any.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._previous_handlers: dict[int, Any] = {}
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._previous_wakeup = -1

    def begin(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self.signal = None
        receiver, sender = self._sockets = socket.socketpair()
        sender.setblocking(False)
        self._previous_wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        self._previous_handlers = {
            number: signal.signal(number, self._ignore) for number in _SIGNALS
        }
        _active.add(self)
        threading.Thread(target=self._listen, args=(receiver,), daemon=True).start()

    def end(self) -> None:
        if self._sockets is None:
            return
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        _active.discard(self)
        self._sockets[1].close()
        self._sockets = None

    def _ignore(self, number: int, frame: FrameType | None) -> None:
        """Do nothing. The C-level handler is only installed together with a Python handler."""

    def _listen(self, receiver: socket.socket) -> None:
        with receiver:
            while numbers := receiver.recv(1):
                if numbers[0] not in _SIGNALS:
                    continue
                if self.signal is not None:
                    os._exit(128 + numbers[0])
                self.signal = signal.Signals(numbers[0])
                _announce(self.signal)

    def exit(self, checkpoint: Path, *, in_line: bool) -> NoReturn:
        """End the program when all processes have written their part of the checkpoint.

        Args:
            checkpoint: the checkpoint to resume from.
            in_line: whether the last line of the output may be incomplete.

        Raises:
            Preempted: always.
        """
        distributed.wait_for_all("the checkpoint is written")
        reason = self.signal.name if self.signal else "a signal to another process"
        message = (
            f"Stopped by {reason}, exit status {EXIT_STATUS}; checkpoint to resume from: "
            f"{checkpoint}"
        )
        if distributed.is_first():
            # On a terminal, there may be another progress bar than Keras's.
            print(f"\n{message}" if in_line or sys.stdout.isatty() else message, flush=True)
        raise Preempted(message)


def _announce(received: signal.Signals) -> None:
    """Report what happens before the program exits, while the device call is still running."""
    if distributed.is_first():
        # A progress bar may be in this line.
        print(
            f"\n{received.name}: waiting for the running device call and its checkpoint. A second "
            "signal exits at once.",
            file=sys.stderr,
            flush=True,
        )


# A forked worker process inherits the handlers and the socket. It must not report its own signals
# to the parent, so signals are blocked during the fork, until the child has reset its handlers.

_active: set[Preemption] = set()
_fork_state = threading.local()


def _before_fork() -> None:
    if _active:
        _fork_state.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _after_fork_in_parent() -> None:
    if (mask := getattr(_fork_state, "mask", None)) is not None:
        _fork_state.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    if _active:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Ctrl-C in a terminal reaches workers too; they continue until the parent ends them.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    _after_fork_in_parent()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
