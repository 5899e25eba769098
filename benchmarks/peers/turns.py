"""Turns of the peers of one workload."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.peers import Contender
from benchmarks.peers.process import RunnerProcess
from benchmarks.peers.protocol import Ready, RunnerError
from benchmarks.peers.workloads import Workload

PREPARE_TIMEOUT = 900.0
TURN_TIMEOUT = 300.0
# Compilation is mostly single-threaded, and nothing is timed during it.
PREPARED_AT_ONCE = 2


# A runner of the largest workload needs less. The system would end one if memory ran out.
MIN_FREE_BYTES = 3 << 30

Key = tuple[str, str]
"""Precision and name of a peer."""


@dataclass(frozen=True)
class Turn:
    """Steps of one peer.

    Attributes:
        steps: number of steps.
        seconds: duration.
        others: fraction of the machine's CPU time that other programs used.
    """

    steps: int
    seconds: float
    others: float


@dataclass
class Outcome:
    """Results of a workload, by precision and name of the peer.

    Attributes:
        turns: turns, one per round.
        ready: descriptions.
        dropped: reasons of those without results.
    """

    turns: dict[Key, list[Turn]] = field(default_factory=dict)
    ready: dict[Key, Ready] = field(default_factory=dict)
    dropped: dict[Key, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the turns of each peer in each precision."""
        found: dict[str, Any] = {}
        for (precision, name), turns in self.turns.items():
            found.setdefault(precision, {})[name] = [asdict(turn) for turn in turns]
        return found


class Rounds:
    """Rounds of one workload: all contenders are prepared, then run one at a time."""

    def __init__(self, workload: Workload, seconds: float, log: Callable[[str], None]) -> None:
        self.workload, self.seconds, self.log = workload, seconds, log
        self.outcome = Outcome()
        self.runners: list[RunnerProcess] = []
        self.steps: dict[Key, int] = {}

    def start(self, contenders: Iterable[Contender], logs: Path) -> None:
        """Start the contenders, which compile and warm up."""
        self.runners = [
            RunnerProcess(one, logs / f"{self.workload.name}-{'-'.join(one.key)}.log")
            for one in contenders
        ]
        with ThreadPoolExecutor(PREPARED_AT_ONCE) as pool:
            try:
                list(pool.map(self._prepare, list(self.runners)))
            except BaseException:  # an interrupt: do not wait for compilations
                pool.shutdown(wait=False, cancel_futures=True)
                for runner in self.runners:
                    runner.process.kill()
                raise

    def calibrate(self) -> None:
        """Determine the number of steps that fill a turn of each peer, which also warms it up.

        Short calls are dominated by overhead, so a longer call follows. The last call is as long
        as a turn, since some peers compile again for another number of samples. With no time for
        turns, a turn is a single loop.
        """
        if not self.seconds:
            self.steps = {one.contender.key: self.workload.loop_steps for one in self.runners}
            return
        for runner in list(self.runners):
            turn = self._take_turn(runner, self.workload.loop_steps)
            if turn is not None and turn.seconds < self.seconds / 3:
                turn = self._take_turn(runner, self._steps_in(self.seconds / 3, turn))
            if turn is not None:
                self.steps[runner.contender.key] = steps = self._steps_in(self.seconds, turn)
                if steps != turn.steps:
                    self._take_turn(runner, steps)

    def run_round(self, number: int) -> None:
        """Run one turn of every contender; each round begins with another one."""
        first = number % max(1, len(self.runners))
        for runner in self.runners[first:] + self.runners[:first]:
            turn = self._take_turn(runner, self.steps[runner.contender.key])
            if turn is not None:
                self.outcome.turns.setdefault(runner.contender.key, []).append(turn)

    def end(self) -> None:
        for runner in self.runners:
            runner.end()
        self.runners = []

    def _prepare(self, runner: RunnerProcess) -> None:
        start = time.perf_counter()
        try:
            if _free_bytes() < MIN_FREE_BYTES:
                raise RunnerError("too little memory is free; choose fewer --peers or --precisions")
            ready = runner.prepare(self.workload.name, PREPARE_TIMEOUT)
        except RunnerError as error:
            self._drop(runner, error)
            return
        self.outcome.ready[runner.contender.key] = ready
        self.log(f"  {runner.contender.title} ready after {time.perf_counter() - start:.0f} s")

    def _take_turn(self, runner: RunnerProcess, steps: int) -> Turn | None:
        busy, own, start = _busy_seconds(), runner.processor_seconds(), time.perf_counter()
        try:
            seconds = runner.run(steps, TURN_TIMEOUT)
        except RunnerError as error:
            self._drop(runner, error)
            return None
        available = (time.perf_counter() - start) * os.cpu_count()
        others = _busy_seconds() - busy - (runner.processor_seconds() - own)
        return Turn(steps, seconds, max(0.0, others / available))

    def _steps_in(self, seconds: float, turn: Turn) -> int:
        return self.workload.whole_steps(seconds, turn.seconds / turn.steps)

    def _drop(self, runner: RunnerProcess, error: Exception) -> None:
        self.log(f"  {runner.contender.title} dropped: {error}")
        self.outcome.dropped[runner.contender.key] = str(error)
        self.outcome.turns.pop(runner.contender.key, None)
        self.runners = [other for other in self.runners if other is not runner]
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
