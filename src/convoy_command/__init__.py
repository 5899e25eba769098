"""The commands `convoy` and `poprun`, before Convoy and JAX are imported.

It is a package of its own because importing any module of `convoy` imports all of it, which takes
two seconds: help, the version and the answer to a slip need none of it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LEFT = 75
"""The exit status of a run that was asked to leave: `EX_TEMPFAIL`, "try again later"."""


def convoy() -> int:
    """Run `convoy`."""
    with ended_by_interrupt():
        from convoy_command.cli import main
    with status_noticed():
        sys.exit(main())


def poprun() -> int:
    """Run `poprun`, Graphcore's name for `convoy launch`."""
    with ended_by_interrupt():
        from convoy.cli.launch import poprun
    return poprun()


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Have Ctrl-C end the process at once, without a traceback.

    For imports: a `KeyboardInterrupt` in the middle of one shows many lines of other packages, and
    some of these take it for an error of their own or drop it. A handler that somebody else has
    chosen stays, and only the main thread may change one.
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
def status_noticed() -> Iterator[None]:
    """Tell the one of several processes that this may be with which exit status it ends.

    It must know before it waits for the others at its end, and Python tells nobody.
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
        processes = sys.modules.get("convoy.distributed")
        if processes is not None:
            processes.ends_with(status)
