"""The observer that records the runs of a strategy's models to a folder."""

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast

import jax
import keras
from convoy import cpu, distributed
from convoy.checkpoint.preemption import Preempted
from convoy.engine import observer
from convoy.engine.chunk_runner import ChunkRunner, FunctionRunner, ModelRunner, Outcome
from convoy.engine.data.chunks import Chunk, Feed
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import EpochCallbacks
from convoy.engine.state import Mode
from convoy.error_messages import system_reason
from convoy.pipeline import Schedule, Timeline, simulate, stage_durations
from convoy.pipeline.runner.base import PipelineRunner
from convoy.report import environment
from convoy.report.event_log import EventLog
from convoy.report.files import ReportWriter, read
from convoy.report.model_summary import summarize
from convoy.report.notebook import display_data
from convoy.report.observed import ObservedFeed, ObservedProgram
from convoy.report.program_analysis import analyze
from convoy.report.threads import CallWaiter, DeviceCall, PeriodicWriter, scalars
from convoy.types import Json, Logs

T = TypeVar("T")


class Observable(Protocol):
    """A strategy."""

    observer: observer.Observer


class Recording(observer.Observer):
    """Records compilations, device calls, metrics and memory until it is closed.

    `Strategy.record` creates it. As a context manager, it is closed at the end of the block;
    otherwise at the end of the process.

    Args:
        folder: the folder of the report; an earlier report is replaced. In a run of several
            processes, the first one writes to this folder and the others to `process-1`,
            `process-2`, ... in it.
        devices: the devices of the strategy.
        metric_names: metric names in the report by names in Keras's logs, where they differ.

    Raises:
        ReportError: if the folder cannot be written.
    """

    times_actions = True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        devices: Sequence[jax.Device],
        metric_names: Mapping[str, str] | None = None,
    ) -> None:
        path = Path(folder)
        self.folder = path if distributed.is_first() else path / f"process-{distributed.index()}"
        self._files = ReportWriter(self.folder)
        own = tuple(device for device in devices if device.process_index == distributed.index())
        self._peak = environment.peak(own)
        self._devices = [str(device) for device in devices]
        self._strategies: list[Observable] = []
        self._open = True
        self._log = EventLog()
        self._runs: list[Json] = []
        # Programs whose analysis is not written yet: number, name and times, and the program.
        self._compiled: list[tuple[int, Json, jax.stages.Compiled]] = []
        self._programs = 0
        self._part = 0
        self._running = 0
        self._error = ""
        # The programs of the current device call, and the times of their first dispatch.
        self._dispatched: dict[int, float] = {}
        self._in_pipeline = False
        self._compiled_at = 0.0
        self._write()
        self._waiter = CallWaiter(self._log, metric_names)
        self._writer = PeriodicWriter(self._write, self._write_if_running)
        self._end_pauses = observer.observe_pauses(self._pause)
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
            self._error = _describe(error)
        self.close()

    def observe(self, strategy: Observable) -> Self:
        """Record the runs of a strategy's models."""
        strategy.observer = self
        self._strategies.append(strategy)
        return self

    def stop_observing(self) -> None:
        """Stop recording, until `observe` is called again."""
        for strategy in self._strategies:
            if strategy.observer is self:
                strategy.observer = observer.NULL_OBSERVER
        self._strategies.clear()
        if self._open:
            self._writer.write_now()

    def close(self) -> None:
        """Stop recording, and write the rest of the report."""
        if not self._open:
            return
        self._open = False
        self.stop_observing()
        self._end_pauses()
        atexit.unregister(self.close)
        self._waiter.close()
        self._writer.close()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        # The output of a notebook cell.
        return display_data(read(self.folder))

    # The interface of an observer ----------------------------------------------------------------

    @contextlib.contextmanager
    def run(self, name: str, model: keras.Model, config: ExecutionConfig) -> Iterator[None]:
        """Record a call of `fit`, `evaluate` or the like, and write the report at its end."""
        begin = time.perf_counter()
        entry: Json = {"name": name, "began": self._log.seconds(begin), "ended": None}
        entry |= {"error": "", "stopped": "", "model": summarize(model, config)}
        self._runs.append(entry)
        self._running += 1
        try:
            yield
        except Preempted as preempted:
            entry["stopped"] = str(preempted)
            raise
        except BaseException as error:
            entry["error"] = _describe(error)
            raise
        finally:
            self._waiter.flush()
            end = time.perf_counter()
            entry["ended"] = self._log.seconds(end)
            self._log.span(name, begin, end)
            self._running -= 1
            if self._open:
                self._writer.write_now()

    def program(self, name: str, program: Any, varying: int | None = None) -> Any:
        return ObservedProgram(name, program, varying, self._on_compiled, self._on_called)

    def runner(self, mode: Mode, runner: ModelRunner) -> ChunkRunner:
        return FunctionRunner(partial(self._run_chunk, mode, runner))

    def epoch(
        self, mode: Mode, runner: ModelRunner, feed: Feed, callbacks: EpochCallbacks
    ) -> tuple[ChunkRunner, Feed, EpochCallbacks]:
        return (
            self.runner(mode, runner),
            cast(Feed, ObservedFeed(feed, self._log)),
            EpochCallbacks(self._timed(callbacks.begin), self._timed(callbacks.end)),
        )

    def end_epoch(self, on_epoch_end: Callable[[int, Logs], None], epoch: int, logs: Logs) -> None:
        self._timed(on_epoch_end)(epoch, logs)
        self._log.epoch(epoch, scalars(logs, self._waiter.names))

    def _timed(self, callback: Callable[..., T]) -> Callable[..., T]:
        """Log the time of a callback, apart from its wait for the result of a device call."""

        def call(number: int, *outcome: Any) -> T:
            begin = time.perf_counter()
            try:
                return callback(number, *outcome)
            finally:
                end = time.perf_counter()
                # A callback that reads a metric waits until the devices have computed it.
                waited_until = self._waiter.ended if _is_ready(outcome) else begin
                own_begin = min(end, max(begin, waited_until))
                if own_begin > begin:
                    self._log.span("wait", begin, own_begin)
                self._log.span("callbacks", own_begin, end)

        return call

    # Events --------------------------------------------------------------------------------------

    def _run_chunk(self, mode: Mode, runner: ModelRunner, chunk: Chunk) -> Outcome:
        begin = time.perf_counter()
        self._dispatched, programs_before = {}, self._programs
        self._in_pipeline = isinstance(runner, PipelineRunner)
        outcome = runner.run(chunk)
        end = time.perf_counter()
        number: int | None
        number, dispatched = next(reversed(self._dispatched.items()), (None, begin))
        if isinstance(runner, PipelineRunner):
            number, dispatched = None, max(begin, self._compiled_at)
            # A call that compiled programs is not representative.
            if runner.timeline is not None and programs_before == self._programs:
                self._log_pipeline(runner.schedule, runner.timeline)
        elif number is not None:
            self._log.count_runs(
                number, runner.config.device_steps(mode, chunk) * runner.config.replicas
            )
        samples = chunk.micro_batches * chunk.micro_batch_samples
        self._waiter.put(DeviceCall(mode, number, dispatched, chunk.steps, samples, outcome))
        self._log.span("device call", begin, end)
        return outcome

    def _pause(self, name: str) -> contextlib.AbstractContextManager[None]:
        return self._log.timed(name) if self._strategies else contextlib.nullcontext()

    def _on_called(self, number: int) -> None:
        # A chunk that takes long is several calls.
        self._dispatched.setdefault(number, time.perf_counter())
        if self._in_pipeline:
            self._log.count_runs(number, 1)

    def _on_compiled(self, about: Json, compiled: jax.stages.Compiled, begin: float) -> int:
        number, self._programs = self._programs, self._programs + 1
        about["at"] = self._log.seconds(begin)
        self._compiled_at = begin + sum(about["seconds"].values())
        self._log.span("compile", begin, self._compiled_at)
        self._compiled.append((number, about, compiled))
        return number

    def _log_pipeline(self, schedule: Schedule, timeline: Timeline) -> None:
        if not self._log.wants_pipeline():
            return
        simulated = simulate(schedule, stage_durations(timeline))
        self._log.pipeline(
            {
                "at": round(self._log.seconds(timeline.began), 6),
                "stages": schedule.stages,
                "micro_batches": schedule.micro_batches,
                "measured": _timeline_json(timeline),
                "simulated": _timeline_json(simulated),
            }
        )

    # Writing -------------------------------------------------------------------------------------

    def _write_if_running(self) -> None:
        if self._running:
            self._write()

    def _write(self) -> None:
        """Write new content. If it cannot be written, report that once and continue."""
        try:
            while self._compiled:
                number, about, compiled = self._compiled.pop(0)
                self._files.write_program(number, about | analyze(about["name"], compiled))
            if (size := environment.memory_in_use()) is not None:
                self._log.host_memory(size)
            part, complete = self._log.take()
            # The totals come first, so that after a kill they include every written row.
            self._files.write_run(self._run_json())
            self._files.write_part(self._part, part)
            self._part += complete
        except OSError as error:
            if not self._error:
                self._error = f"the report is incomplete: {system_reason(error)}"
                print(f"convoy: {self.folder}: {self._error}", file=sys.stderr)

    def _state(self) -> str:
        if self._error or any(run["error"] for run in self._runs):
            return "failed"
        if self._open and (self._running or not self._runs):
            return "running"
        return "stopped" if self._runs and self._runs[-1]["stopped"] else "ended"

    def _run_json(self) -> Json:
        return {
            "state": self._state(),
            "error": self._error,
            "began": self._log.wall,
            "seconds": self._log.seconds(),
            "process": {
                "number": distributed.index(),
                "of": distributed.count(),
                "id": os.getpid(),
            },
            "devices": self._devices,
            "framework": environment.framework(),
            "cpu_kernels": str(cpu.status()).splitlines()[0],
            "peak": self._peak,
            "runs": self._runs,
            "totals": self._log.summary(),
        }


def _is_ready(outcome: Any) -> bool:
    arrays: list[Any] = [leaf for leaf in jax.tree.leaves(outcome) if isinstance(leaf, jax.Array)]
    return all(array.is_ready() for array in arrays)


def _timeline_json(timeline: Timeline) -> Json:
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


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
