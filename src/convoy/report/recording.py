"""Records what the models of a strategy do, into a folder."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, cast

import jax
import keras
from convoy import cpu, distributed
from convoy.checkpoint.preemption import Preempted
from convoy.engine import observer
from convoy.engine.chunk_runner import ChunkRunner, ModelRunner, Outcome
from convoy.engine.data.chunks import Chunk, Feed
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import Mode
from convoy.pipeline import Timeline, simulate, stage_durations
from convoy.report import machine
from convoy.report.background import DeviceCall, Waiter, Writer, numbers
from convoy.report.files import Files, Json
from convoy.report.models import describe as describe_model
from convoy.report.notes import Notes
from convoy.report.programs import ObservedProgram
from convoy.report.programs import describe as describe_program


class Recording:
    """Writes down what is compiled and what is run, until it is closed or the process ends.

    Made by `Strategy.record`. As a context manager, it is closed at the end of the block.

    Args:
        folder: where the files go. A report that is there is replaced. Each process of a run in
            several has a folder of its own: the first this one, others `process-1` in it and so on.
        devices: those that it is about.

    Raises:
        ReportError: if the folder cannot be written to.
    """

    times_actions = True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        devices: Sequence[jax.Device],
    ) -> None:
        path = Path(folder)
        self.folder = path if distributed.is_first() else path / f"process-{distributed.index()}"
        self._files = Files(self.folder)
        own = tuple(device for device in devices if device.process_index == distributed.index())
        self._peak = machine.peak(own)
        self._devices = [str(device) for device in devices]
        self._observed: list[Observed] = []
        self._open = True
        self._notes = Notes()
        self._runs: list[Json] = []
        self._compiled: list[tuple[int, Json, Any]] = []
        self._programs = 0
        self._part = 0
        self._running = 0
        self._error = ""
        self._started: dict[int | None, float] = {}
        """The programs of the call that runs, and when they were last handed to the devices."""
        self._in_pipeline = False
        self._compiled_at = 0.0
        self._write()
        self._waiter = Waiter(self._notes)
        self._writer = Writer(self._write, self._write_meanwhile)
        self._end_listening = observer.listen(self._pause)
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, Preempted):
            self._error = _say(error)
        self.close()

    def watch(self, strategy: Observed) -> Self:
        """Record what the models of a strategy do, until it is closed."""
        strategy.observer = self
        self._observed.append(strategy)
        return self

    def unwatch(self) -> None:
        """Record no more, until it is told to watch again."""
        for strategy in self._observed:
            if strategy.observer is self:
                strategy.observer = observer.NULL_OBSERVER
        self._observed.clear()
        if self._open:
            self._writer.now()

    def close(self) -> None:
        """Write what is left, and record no more."""
        if not self._open:
            return
        self._open = False
        self.unwatch()
        self._end_listening()
        atexit.unregister(self.close)
        self._waiter.close()
        self._writer.close()

    # What the engine tells -----------------------------------------------------------------------

    @contextlib.contextmanager
    def run(self, name: str, model: keras.Model, config: ExecutionConfig) -> Iterator[None]:
        """Note a call of `fit` or one of its sisters, and write all of it when it has ended."""
        begin = time.perf_counter()
        noted: Json = {"name": name, "began": self._notes.seconds(begin), "ended": None}
        noted |= {"error": "", "stopped": "", "model": describe_model(model, config)}
        self._runs.append(noted)
        self._running += 1
        try:
            yield
        except Preempted as asked:
            noted["stopped"] = str(asked)
            raise
        except BaseException as error:
            noted["error"] = _say(error)
            raise
        finally:
            self._waiter.settle()
            end = time.perf_counter()
            noted["ended"] = self._notes.seconds(end)
            self._notes.span(name, begin, end)
            self._running -= 1
            if self._open:
                self._writer.now()

    def program(self, name: str, program: Any, varying: int | None = None) -> Any:
        return ObservedProgram(name, program, varying, self._note_program, self._note_started)

    def programs(self, mode: Mode, programs: ModelRunner) -> ChunkRunner:
        return ObservedPrograms(self, mode, programs)

    def feed(self, feed: Feed) -> Feed:
        return cast(Feed, ObservedFeed(feed, self._notes))

    def callback(self, function: Callable[..., None]) -> Callable[..., None]:
        notes = self._notes

        def timed(*arguments: Any) -> None:
            begin = time.perf_counter()
            function(*arguments)
            notes.span("callbacks", begin, time.perf_counter())

        return timed

    def epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        self._notes.epoch(epoch, numbers(logs))

    def call(self, mode: Mode, programs: Any, chunk: Chunk) -> Any:
        """Run a chunk of data, and note it."""
        begin = time.perf_counter()
        self._started, before = {}, self._programs
        composition = getattr(programs, "composition", None)
        self._in_pipeline = composition is None
        outcome = programs.run(chunk)
        end = time.perf_counter()
        number, started = next(reversed(self._started.items()), (None, begin))
        if composition is None:
            number, started = None, max(begin, self._compiled_at)
            timeline = getattr(programs, "timeline", None)
            if timeline is not None and before == self._programs:
                self._note_pipeline(programs, timeline)
        elif number is not None:
            updates = chunk.micro_batches // composition.accumulated(chunk)
            self._notes.ran(number, updates * composition.config.replicas)
        samples = chunk.micro_batches * chunk.batch
        self._waiter.put(DeviceCall(mode, number, started, chunk.steps, samples, outcome))
        self._notes.span("device call", begin, end)
        return outcome

    @contextlib.contextmanager
    def _pause(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            if self._observed:
                self._notes.span(name, begin, time.perf_counter())

    def _note_started(self, number: int) -> None:
        self._started[number] = time.perf_counter()
        if self._in_pipeline:
            self._notes.ran(number, 1)

    def _note_program(self, about: Json, compiled: Any, begin: float) -> int:
        number, self._programs = self._programs, self._programs + 1
        about["at"] = self._notes.seconds(begin)
        self._compiled_at = begin + sum(about["seconds"].values())
        self._notes.span("compile", begin, self._compiled_at)
        self._compiled.append((number, about, compiled))
        return number

    def _note_pipeline(self, programs: Any, timeline: Timeline) -> None:
        if not self._notes.wants_pipeline():
            return
        on_paper = simulate(programs.schedule, stage_durations(timeline))
        self._notes.pipeline(
            {
                "at": round(self._notes.seconds(timeline.began), 6),
                "stages": programs.schedule.stages,
                "micro_batches": programs.schedule.micro_batches,
                "measured": _timeline(timeline),
                "simulated": _timeline(on_paper),
            }
        )

    # What is written -----------------------------------------------------------------------------

    def _write_meanwhile(self) -> None:
        if self._running:
            self._write()

    def _write(self) -> None:
        """Write what is new; a disk that cannot take it is said once, and the run goes on."""
        try:
            while self._compiled:
                number, about, compiled = self._compiled.pop(0)
                self._files.write_program(number, about | describe_program(about["name"], compiled))
            if (size := machine.memory_in_use()) is not None:
                self._notes.host_memory(size)
            part, full = self._notes.take()
            # First the totals: whoever finds a row, even after a kill, finds it counted.
            self._files.write_run(self._about())
            self._files.write_part(self._part, part)
            self._part += full
        except OSError as error:
            if not self._error:
                self._error = f"not all of the report could be written: {error.strerror}"
                print(f"convoy: {self.folder}: {self._error}", file=sys.stderr)

    def _state(self) -> str:
        if self._error or any(run["error"] for run in self._runs):
            return "failed"
        if self._open and (self._running or not self._runs):
            return "running"
        return "stopped" if self._runs and self._runs[-1]["stopped"] else "ended"

    def _about(self) -> Json:
        return {
            "state": self._state(),
            "error": self._error,
            "began": self._notes.wall,
            "seconds": self._notes.seconds(),
            "process": {
                "number": distributed.index(),
                "of": distributed.count(),
                "id": os.getpid(),
            },
            "devices": self._devices,
            "framework": machine.framework(),
            "cpu_kernels": str(cpu.status()).splitlines()[0],
            "peak": self._peak,
            "runs": self._runs,
            "totals": self._notes.summary(),
        }


class Observed(Protocol):
    """A strategy."""

    observer: observer.Observer


class ObservedPrograms:
    """Runs chunks of data, and has a recording note it."""

    def __init__(self, recording: Recording, mode: Mode, programs: ModelRunner) -> None:
        self._recording, self._mode, self._programs = recording, mode, programs

    def run(self, chunk: Chunk) -> Outcome:
        return self._recording.call(self._mode, self._programs, chunk)


class ObservedFeed:
    """Hands out a feed's data, and notes how long that took."""

    def __init__(self, feed: Feed, notes: Notes) -> None:
        self._feed, self._notes = feed, notes

    def next(self, limit: int) -> Chunk | None:
        begin = time.perf_counter()
        chunk = self._feed.next(limit)
        self._notes.span("input", begin, time.perf_counter())
        return chunk

    def prefetch(self, limit: int) -> None:
        begin = time.perf_counter()
        self._feed.prefetch(limit)
        self._notes.span("prefetch", begin, time.perf_counter())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)


def _timeline(timeline: Timeline) -> Json:
    return {
        "devices": timeline.devices,
        "seconds": timeline.seconds,
        "bubble": timeline.bubble,
        "peak_stash": list(timeline.peak_stash),
        "events": [
            [event.device, str(event.action), round(event.start, 7), round(event.end, 7)]
            for event in timeline.events
        ],
    }


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
