"""The two threads of a recording: one waits for the devices, the other writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import jax
import numpy as np
from convoy.report.notes import Notes


@dataclass(frozen=True)
class DeviceCall:
    """A call that has been started.

    Attributes:
        mode: `"train"`, `"evaluate"` or `"predict"`.
        program: the number of what runs; `None` for the programs of a pipeline.
        started: when it was handed to the devices.
        steps: as the user counts them.
        samples: of all steps.
        outcome: is there when the call has ended.
    """

    mode: str
    program: int | None
    started: float
    steps: int
    samples: int
    outcome: Any


class Waiter:
    """Waits for one device call after the other, and notes when it ended.

    A call began when it had been started, and the one before it had ended.
    """

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self._queue: SimpleQueue[DeviceCall | threading.Event | None] = SimpleQueue()
        self._steps: dict[str, int] = {}
        self._ended = 0.0
        self._thread = threading.Thread(target=self._watch, name="convoy-report-wait", daemon=True)
        self._thread.start()

    def put(self, call: DeviceCall) -> None:
        self._queue.put(call)

    def settle(self) -> None:
        """Wait until all calls so far have ended."""
        if self._thread.is_alive():
            reached = threading.Event()
            self._queue.put(reached)
            reached.wait()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _watch(self) -> None:
        while (entry := self._queue.get()) is not None:
            if isinstance(entry, threading.Event):
                entry.set()
            else:
                self._wait_for(entry)

    def _wait_for(self, call: DeviceCall) -> None:
        try:
            jax.block_until_ready(call.outcome)
        except Exception:
            return  # whoever asked for it gets the error
        end = time.perf_counter()
        begin = min(end, max(self._ended, call.started))
        self._ended = end
        self.notes.call(call.mode, call.program, begin, end, call.steps, call.samples)
        step = self._steps[call.mode] = self._steps.get(call.mode, 0) + call.steps
        if call.mode != "predict":
            self.notes.metrics(call.mode, step, numbers(call.outcome))


class Writer:
    """Writes every second, until it is closed, and whenever it is told to.

    Args:
        write: writes all that there is.
        meanwhile: is called every second, and may write.
    """

    def __init__(
        self, write: Callable[[], None], meanwhile: Callable[[], None], seconds: float = 1.0
    ) -> None:
        self._write, self._meanwhile, self._seconds = write, meanwhile, seconds
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="convoy-report-write", daemon=True)
        self._thread.start()

    def now(self) -> None:
        with self._lock:
            self._write()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self.now()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            with self._lock:
                self._meanwhile()


def numbers(logs: Any) -> dict[str, float]:
    """Return those of some logs that are single numbers."""
    if not isinstance(logs, dict):
        return {}
    arrays = {name: np.asarray(value) for name, value in logs.items() if _is_number(value)}
    return {name: float(value) for name, value in arrays.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or getattr(value, "shape", None) == ()
