"""Turns of the peers of one workload."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.peers import Peer
from benchmarks.peers.process import RunnerProcess
from benchmarks.peers.protocol import Ready, RunnerError
from benchmarks.peers.workloads import Workload

PREPARE_TIMEOUT = 900.0
TURN_TIMEOUT = 300.0
# Compilation is mostly single-threaded, and nothing is timed during it.
PREPARED_AT_ONCE = 2


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
    """Results of a workload.

    Attributes:
        turns: turns by peer, one per round.
        ready: descriptions by peer.
        dropped: reasons by peer without results.
    """

    turns: dict[str, list[Turn]] = field(default_factory=dict)
    ready: dict[str, Ready] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {name: [asdict(turn) for turn in turns] for name, turns in self.turns.items()}


class Rounds:
    """Rounds of one workload: all peers are prepared, then run one at a time."""

    def __init__(self, workload: Workload, seconds: float, log: Callable[[str], None]) -> None:
        self.workload, self.seconds, self.log = workload, seconds, log
        self.outcome = Outcome()
        self.runners: list[RunnerProcess] = []
        self.steps: dict[str, int] = {}

    def start(self, peers: Iterable[Peer], logs: Path) -> None:
        """Start the peers, which compile and warm up."""
        self.runners = [
            RunnerProcess(peer, logs / f"{self.workload.name}-{peer.name}.log") for peer in peers
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
            self.steps = {runner.peer.name: self.workload.loop_steps for runner in self.runners}
            return
        for runner in list(self.runners):
            turn = self._take_turn(runner, self.workload.loop_steps)
            if turn is not None and turn.seconds < self.seconds / 3:
                turn = self._take_turn(runner, self._steps_in(self.seconds / 3, turn))
            if turn is not None:
                self.steps[runner.peer.name] = steps = self._steps_in(self.seconds, turn)
                if steps != turn.steps:
                    self._take_turn(runner, steps)

    def run_round(self, number: int) -> None:
        """Run one turn of every peer; each round begins with another peer."""
        first = number % max(1, len(self.runners))
        for runner in self.runners[first:] + self.runners[:first]:
            turn = self._take_turn(runner, self.steps[runner.peer.name])
            if turn is not None:
                self.outcome.turns.setdefault(runner.peer.name, []).append(turn)

    def end(self) -> None:
        for runner in self.runners:
            runner.end()
        self.runners = []

    def _prepare(self, runner: RunnerProcess) -> None:
        start = time.perf_counter()
        try:
            ready = runner.prepare(self.workload.name, PREPARE_TIMEOUT)
        except RunnerError as error:
            self._drop(runner, error)
            return
        self.outcome.ready[runner.peer.name] = ready
        self.log(f"  {runner.peer.title} ready after {time.perf_counter() - start:.0f} s")

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
        self.log(f"  {runner.peer.title} dropped: {error}")
        self.outcome.dropped[runner.peer.name] = str(error)
        self.outcome.turns.pop(runner.peer.name, None)
        self.runners = [other for other in self.runners if other is not runner]
        runner.end()


def _busy_seconds() -> float:
    """Return the CPU time of all cores since the system started."""
    user, nice, system, _, _, interrupt, soft, *_ = (
        int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupt + soft) / os.sysconf("SC_CLK_TCK")
