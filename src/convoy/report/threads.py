"""The background threads of a recording: one waits for device calls, one writes the files."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import jax
import numpy as np
from convoy.engine.chunk_runner import Outcome
from convoy.report.event_log import EventLog


@dataclass(frozen=True)
class DeviceCall:
    """A device call that was started.

    Attributes:
        mode: `"train"`, `"evaluate"` or `"predict"`.
        program: number of the program; `None` for the programs of a pipeline.
        started: time of the dispatch.
        steps: number of steps, as the user counts them.
        samples: number of samples of all steps.
        outcome: result of the call, which is ready when the call has ended.
    """

    mode: str
    program: int | None
    started: float
    steps: int
    samples: int
    outcome: Outcome


class CallWaiter:
    """Waits for each device call, and logs its begin and end.

    A call begins when it is dispatched and the previous one has ended.

    Args:
        log: log of the recording.
        names: metric names in the report by names in the logs, where they differ.

    Attributes:
        ended: time at which the last call ended.
    """

    def __init__(self, log: EventLog, names: Mapping[str, str] | None = None) -> None:
        self.log = log
        self.names = names or {}
        self.ended = 0.0
        self._queue: SimpleQueue[DeviceCall | threading.Event | None] = SimpleQueue()
        self._steps: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="convoy-report-wait", daemon=True)
        self._thread.start()

    def put(self, call: DeviceCall) -> None:
        self._queue.put(call)

    def flush(self) -> None:
        """Wait until all calls so far have ended."""
        if self._thread.is_alive():
            reached = threading.Event()
            self._queue.put(reached)
            reached.wait()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            if isinstance(entry, threading.Event):
                entry.set()
            else:
                self._wait_for(entry)

    def _wait_for(self, call: DeviceCall) -> None:
        try:
            jax.block_until_ready(call.outcome)
        except Exception:
            return  # The training loop raises the error.
        end = time.perf_counter()
        begin = min(end, max(self.ended, call.started))
        self.ended = end
        self.log.call(call.mode, call.program, begin, end, call.steps, call.samples)
        step = self._steps[call.mode] = self._steps.get(call.mode, 0) + call.steps
        if call.mode != "predict":
            self.log.metrics(call.mode, step, scalars(call.outcome, self.names))


class PeriodicWriter:
    """Calls a function at regular intervals until it is closed.

    Args:
        write: function that writes everything; it is called on request and at the end.
        periodically: function that is called at each interval.
        seconds: the interval.
    """

    def __init__(
        self, write: Callable[[], None], periodically: Callable[[], None], seconds: float = 1.0
    ) -> None:
        self._write, self._periodically, self._seconds = write, periodically, seconds
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="convoy-report-write", daemon=True)
        self._thread.start()

    def write_now(self) -> None:
        with self._lock:
            self._write()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self.write_now()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            with self._lock:
                self._periodically()


def scalars(logs: Any, names: Mapping[str, str]) -> dict[str, float]:
    """Return the entries of some logs that are scalars.

    Args:
        logs: values by name.
        names: new names of some of them.
    """
    if not isinstance(logs, dict):
        return {}
    arrays = {name: np.asarray(value) for name, value in logs.items() if _is_scalar(value)}
    return {names.get(name, name): float(value) for name, value in arrays.items()}


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float)) or getattr(value, "shape", None) == ()
