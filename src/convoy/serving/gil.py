"""Release of the GIL by threads that run Python code for a long time.

A thread that waits for the GIL gets it only after a switch interval, and a request needs it several
times. If the thread that has it is waiting for a core, all others wait with it. A thread that often
pauses for a moment lets others run without that wait, and the system seldom takes its core away.

Garbage collection holds the GIL too: for more than a second, if a text has a million lists.
"""

import contextlib
import gc
import threading
import time
from collections.abc import Iterator

# Time for which a thread may run before it pauses, and time of the pause. Systems make a pause
# about 0.06 ms longer.
RUN_SECONDS = 0.0002
PAUSE_SECONDS = 0.0001

# Longest time without garbage collection.
COLLECT_SECONDS = 1.0

_threads = threading.local()
_lock = threading.Lock()
_long_work = 0
_collected = 0.0


@contextlib.contextmanager
def long_work() -> Iterator[None]:
    """Run the block without garbage collection, and let `let_others_run` pause its thread.

    The values that the block makes must not have cycles. It must not run in the event loop.
    """
    global _long_work, _collected
    with _lock:
        _long_work += 1
        gc.disable()
    _threads.resumed = time.perf_counter()
    try:
        yield
    finally:
        _threads.resumed = None
        with _lock:
            _long_work -= 1
            now = time.monotonic()
            if not _long_work or now >= _collected + COLLECT_SECONDS:
                # The next allocations start a collection.
                gc.enable()
                _collected = now


def let_others_run() -> None:
    """Pause this thread for a moment if it has run for a while since the last pause.

    It is called between steps that take less than `RUN_SECONDS`. Outside of `long_work`, it does
    nothing.
    """
    resumed = getattr(_threads, "resumed", None)
    if resumed is not None and time.perf_counter() - resumed >= RUN_SECONDS:
        time.sleep(PAUSE_SECONDS)
        _threads.resumed = time.perf_counter()
