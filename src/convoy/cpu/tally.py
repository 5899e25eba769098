"""How many operations each kernel was chosen for, for `convoy.cpu.status()`."""

from collections import Counter
from threading import Lock

_lock = Lock()
_lowered: Counter[str] = Counter()


def count(kernel: str) -> None:
    with _lock:
        _lowered[kernel] += 1


def counts() -> dict[str, int]:
    with _lock:
        return dict(sorted(_lowered.items()))


def reset() -> None:
    with _lock:
        _lowered.clear()
