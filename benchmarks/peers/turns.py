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
# Compiling is mostly work of one thread, and nothing is timed meanwhile.
PREPARED_AT_ONCE = 2


@dataclass(frozen=True)
class Turn:
    """Some steps of one peer.

    Attributes:
        steps: how many.
        seconds: how long they took.
        others: the share of the machine's cores that everything else took meanwhile.
    """

    steps: int
    seconds: float
    others: float


@dataclass
class Outcome:
    """What a workload's turns gave.

    Attributes:
        turns: of each peer, a turn per round.
        ready: what each peer told about itself.
        dropped: why a peer has no figures.
    """

    turns: dict[str, list[Turn]] = field(default_factory=dict)
    ready: dict[str, Ready] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {name: [asdict(turn) for turn in turns] for name, turns in self.turns.items()}


class Table:
    """The peers around one workload: prepared side by side, then one at a time."""

    def __init__(self, workload: Workload, seconds: float, say: Callable[[str], None]) -> None:
        self.workload, self.seconds, self.say = workload, seconds, say
        self.outcome = Outcome()
        self.seated: list[RunnerProcess] = []
        self.steps: dict[str, int] = {}

    def seat(self, peers: Iterable[Peer], logs: Path) -> None:
        """Start the peers and have them compile and warm up."""
        self.seated = [
            RunnerProcess(peer, logs / f"{self.workload.name}-{peer.name}.log") for peer in peers
        ]
        with ThreadPoolExecutor(PREPARED_AT_ONCE) as pool:
            try:
                list(pool.map(self._prepare, list(self.seated)))
            except BaseException:  # an interrupt: do not wait for what compiles
                pool.shutdown(wait=False, cancel_futures=True)
                for runner in self.seated:
                    runner.process.kill()
                raise

    def calibrate(self) -> None:
        """Find out how many steps fill each peer's turn, which warms it up once more.

        A call of a few steps is mostly the call, so a short one is followed by a longer one; and
        the last is as long as a turn, since some compile anew for another number of samples. With
        no time for turns, a turn is a single loop.
        """
        if not self.seconds:
            self.steps = {runner.peer.name: self.workload.loop_steps for runner in self.seated}
            return
        for runner in list(self.seated):
            turn = self._take_turn(runner, self.workload.loop_steps)
            if turn is not None and turn.seconds < self.seconds / 3:
                turn = self._take_turn(runner, self._steps_in(self.seconds / 3, turn))
            if turn is not None:
                self.steps[runner.peer.name] = steps = self._steps_in(self.seconds, turn)
                if steps != turn.steps:
                    self._take_turn(runner, steps)

    def play_round(self, number: int) -> None:
        """Let every peer take a turn; who begins changes from round to round."""
        first = number % max(1, len(self.seated))
        for runner in self.seated[first:] + self.seated[:first]:
            turn = self._take_turn(runner, self.steps[runner.peer.name])
            if turn is not None:
                self.outcome.turns.setdefault(runner.peer.name, []).append(turn)

    def leave(self) -> None:
        for runner in self.seated:
            runner.end()
        self.seated = []

    def _prepare(self, runner: RunnerProcess) -> None:
        start = time.perf_counter()
        try:
            ready = runner.prepare(self.workload.name, PREPARE_TIMEOUT)
        except RunnerError as error:
            self._drop(runner, error)
            return
        self.outcome.ready[runner.peer.name] = ready
        self.say(f"  {runner.peer.title} ready after {time.perf_counter() - start:.0f} s")

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
        self.say(f"  {runner.peer.title} dropped: {error}")
        self.outcome.dropped[runner.peer.name] = str(error)
        self.outcome.turns.pop(runner.peer.name, None)
        self.seated = [other for other in self.seated if other is not runner]
        runner.end()


def _busy_seconds() -> float:
    """Return the time that all cores have been at work since the system started."""
    user, nice, system, _, _, interrupt, soft, *_ = (
        int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupt + soft) / os.sysconf("SC_CLK_TCK")
