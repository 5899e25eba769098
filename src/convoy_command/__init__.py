"""Entry points of the commands `convoy` and `poprun`, which start without importing JAX.

This is a separate package because importing any module of `convoy` imports JAX and Keras, which
takes two seconds. Help, the version and errors about unknown verbs do not need them.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LEFT = 75
"""The exit status of a preempted run: `EX_TEMPFAIL`, "try again later"."""


class JoinError(ConnectionError):
    """The other processes of a run cannot be reached; `program` prints the message only."""


def convoy() -> int:
    """Run `convoy`."""
    with ended_by_interrupt():
        from convoy_command.cli import main
    with exit_status_reported():
        sys.exit(main())


def poprun() -> int:
    """Run `poprun`, Graphcore's name for `convoy launch`."""
    with ended_by_interrupt():
        from convoy.cli.launch import poprun
    return poprun()


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once and without a traceback.

    Use it around imports: a `KeyboardInterrupt` during an import prints a long traceback, and some
    packages swallow it. A handler other than Python's default is not replaced, and only the main
    thread may replace one.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if handler is not signal.default_int_handler or not is_main:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def exit_status_reported() -> Iterator[None]:
    """Report the exit status to `convoy.distributed.membership`, if the program has imported it.

    At its end, one of several processes waits for the others, and must know its exit status before
    that. Python has no hook for it.
    """
    status = 0
    try:
        yield
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except BaseException:
        status = 1
        raise
    finally:
        membership = sys.modules.get("convoy.distributed.membership")
        if membership is not None:
            membership.set_exit_status(status)
