"""Turns of the peers of one workload."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.peers import CORES, HEADLINE, MARKS, PEERS, Contender
from benchmarks.peers.process import RunnerProcess
from benchmarks.peers.protocol import Ready, RunnerError
from benchmarks.peers.suites import Suite
from benchmarks.peers.workloads import Workload

PREPARE_TIMEOUT = 1800.0
TURN_TIMEOUT = 300.0
# A runner of the largest workload of the peers' page needs less.
MIN_FREE_BYTES = 3 << 30
# Memory that a peer may need, relative to the one that has needed most.
MEMORY_FACTOR = 1.5

Key = tuple[str, str]
"""Precision and name of a peer."""


@dataclass(frozen=True)
class Turn:
    """Steps of one peer.

    Attributes:
        round: number of the round, which the turns of several peers share.
        steps: number of steps.
        seconds: duration.
        cpu_seconds: CPU time of all threads of the peer, which another program on the same cores
            changes less than the duration.
        others: fraction of the machine's CPU time that other programs used.
    """

    round: int
    steps: int
    seconds: float
    cpu_seconds: float
    others: float


@dataclass
class Start:
    """What a peer needed before its turns, and its memory.

    Attributes:
        seconds: from the start of its process to the end of the first device call, with imports,
            the model's construction and compilation.
        cpu_seconds: CPU time of all its threads until then.
        peak_bytes: the largest physical memory until then.
        turns_peak_bytes: the largest physical memory afterwards.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    turns_peak_bytes: int = 0


@dataclass
class Outcome:
    """Results of a workload, by precision and name of the peer.

    Attributes:
        turns: turns, one per round.
        starts: their starts.
        ready: descriptions.
        dropped: reasons of those without results.
    """

    turns: dict[Key, list[Turn]] = field(default_factory=dict)
    starts: dict[Key, Start] = field(default_factory=dict)
    ready: dict[Key, Ready] = field(default_factory=dict)
    dropped: dict[Key, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the turns of each peer in each precision."""
        return _nested({key: list(map(asdict, turns)) for key, turns in self.turns.items()})

    def starts_as_json(self) -> dict[str, Any]:
        """Return the start of each peer in each precision."""
        return _nested({key: asdict(self.starts[key]) for key in self.turns})


def _nested(figures: dict[Key, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (precision, name), value in figures.items():
        found.setdefault(precision, {})[name] = value
    return found


class Rounds:
    """Rounds of one workload: all contenders are prepared, then run one at a time.

    Contenders that do not fit in memory beside the others wait for further rounds, in which they
    take turns with Convoy alone.
    """

    def __init__(
        self, workload: Workload, suite: Suite, seconds: float, log: Callable[[str], None]
    ) -> None:
        self.workload, self.suite, self.seconds, self.log = workload, suite, seconds, log
        self.outcome = Outcome()
        self.runners: list[RunnerProcess] = []
        self.waiting: list[Contender] = []
        self.steps: dict[Key, int] = {}
        self.number = 0

    def start(self, contenders: Sequence[Contender], logs: Path) -> None:
        """Start the contenders, which compile and warm up."""
        self.waiting = []
        at_once = self.suite.prepared_at_once
        with ThreadPoolExecutor(at_once) as pool:
            try:
                running: set[Future[None]] = set()
                for contender in contenders:
                    if len(running) == at_once:
                        _, running = wait(running, return_when=FIRST_COMPLETED)
                    # Here and not in the pool: a process ends with the thread that started it.
                    runner = self._launch(contender, logs)
                    if runner is not None:
                        running.add(pool.submit(self._prepare, runner))
                for prepared in running:
                    prepared.result()
            except BaseException:  # an interrupt: do not wait for compilations
                pool.shutdown(wait=False, cancel_futures=True)
                for runner in self.runners:
                    runner.process.kill()
                raise
        self.runners.sort(key=lambda runner: contenders.index(runner.contender))

    def calibrate(self) -> None:
        """Determine the number of steps that fill a turn of each peer, which also warms it up.

        Short calls are dominated by overhead, so a longer call follows. The last call is as long
        as a turn, since some peers compile again for another number of samples. With no time for
        turns, a turn is a single loop.
        """
        for runner in list(self.runners):
            self.steps[runner.contender.key] = self.workload.loop_steps
            turn = self._take_turn(runner, self.workload.loop_steps) if self.seconds else None
            if turn is not None and turn.seconds < self.seconds / 3:
                turn = self._take_turn(runner, self._steps_in(self.seconds / 3, turn))
            if turn is not None:
                self.steps[runner.contender.key] = steps = self._steps_in(self.seconds, turn)
                if steps != turn.steps:
                    self._take_turn(runner, steps)
        for runner in self.runners:
            runner.reset_peak()

    def run_round(self) -> None:
        """Run one turn of every contender; each round begins with another one."""
        first = self.number % max(1, len(self.runners))
        for runner in self.runners[first:] + self.runners[:first]:
            key = runner.contender.key
            if self._is_far_behind(key):
                continue
            turn = self._take_turn(runner, self.steps[key])
            if turn is not None:
                self.outcome.turns.setdefault(key, []).append(turn)
                self.outcome.starts[key].turns_peak_bytes = runner.peak_bytes()
        self.number += 1

    def end(self) -> list[Contender]:
        """End the processes. Return the contenders of further rounds, if any had to wait."""
        for runner in self.runners:
            runner.end()
        self.runners = []
        precisions = dict.fromkeys(one.precision for one in self.waiting)
        beside = [Contender(PEERS[HEADLINE], precision) for precision in precisions]
        return [*beside, *self.waiting]

    def _launch(self, contender: Contender, logs: Path) -> RunnerProcess | None:
        """Start the process of a contender, unless memory is short."""
        free, needed = _free_bytes(), self._needed_bytes()
        if free < needed:
            if any(runner.contender.peer.name != HEADLINE for runner in self.runners):
                self.log(f"  {contender.title} waits until memory is free")
                self.waiting.append(contender)
            else:
                short = f"{free / 2**30:.1f} GiB are free, and {needed / 2**30:.1f} may be needed"
                self._drop(contender, RunnerError(f"too little memory is free: {short}"))
            return None
        log = logs / f"{self.workload.name}-{'-'.join(contender.key)}.log"
        runner = RunnerProcess(contender, log, self.suite.keeps_programs)
        self.runners.append(runner)
        return runner

    def _prepare(self, runner: RunnerProcess) -> None:
        start, contender = time.perf_counter(), runner.contender
        try:
            ready = runner.prepare(self.workload.name, PREPARE_TIMEOUT)
        except RunnerError as error:
            self._drop(contender, error)
            return
        seconds = time.perf_counter() - start
        found = Start(seconds, runner.processor_seconds(), runner.peak_bytes())
        # That of the first rounds, if it is Convoy in further ones.
        self.outcome.starts.setdefault(contender.key, found)
        self.outcome.ready.setdefault(contender.key, ready)
        self.log(f"  {contender.title} ready after {seconds:.0f} s")

    def _needed_bytes(self) -> float:
        """Return the memory that must be free for another peer."""
        peaks = [start.peak_bytes for start in self.outcome.starts.values()]
        return max(MIN_FREE_BYTES, MEMORY_FACTOR * max(peaks, default=0))

    def _is_far_behind(self, key: Key) -> bool:
        """Return whether a peer has had a turn in which it was much slower than the best peer."""
        step = {
            other: turns[0].seconds / turns[0].steps
            for other, turns in self.outcome.turns.items()
            if other[0] == key[0] and other[1] not in (HEADLINE, CORES, *MARKS)
        }
        return key in step and step[key] > self.suite.far_behind * min(step.values())

    def _take_turn(self, runner: RunnerProcess, steps: int) -> Turn | None:
        busy, own, start = _busy_seconds(), runner.processor_seconds(), time.perf_counter()
        try:
            seconds = runner.run(steps, TURN_TIMEOUT)
        except RunnerError as error:
            self._drop(runner.contender, error)
            return None
        available = (time.perf_counter() - start) * os.cpu_count()
        own = runner.processor_seconds() - own
        others = max(0.0, (_busy_seconds() - busy - own) / available)
        return Turn(self.number, steps, seconds, own, others)

    def _steps_in(self, seconds: float, turn: Turn) -> int:
        return self.workload.whole_steps(seconds, turn.seconds / turn.steps)

    def _drop(self, contender: Contender, error: Exception) -> None:
        self.log(f"  {contender.title} dropped: {error}")
        self.outcome.dropped[contender.key] = str(error)
        self.outcome.turns.pop(contender.key, None)
        for runner in [one for one in self.runners if one.contender is contender]:
            self.runners.remove(runner)
            runner.end()


def _free_bytes() -> int:
    """Return the memory that new programs can use without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _busy_seconds() -> float:
    """Return the CPU time of all cores since the system started."""
    user, nice, system, _, _, interrupt, soft, *_ = (
        int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupt + soft) / os.sysconf("SC_CLK_TCK")
