"""A group of processes that begin, run and end together."""

from __future__ import annotations

import contextlib
import json
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convoy.checkpoint.preemption import EXIT_STATUS
from convoy.distributed import HEARTBEAT
from convoy.launch import agent

LOCAL = "localhost"
# How many of a process's last lines are shown when it fails.
LAST_LINES = 20
# How long the others may take to end by themselves, when one has ended.
GRACE_SECONDS = 10.0
# How often the group is looked at when nothing is heard from it.
LOOK_SECONDS = 0.2

Event = tuple["Member", str, str]


@dataclass(frozen=True)
class Task:
    """What one process is to run.

    Attributes:
        index: which process of the group.
        host: where.
        command: the program and its arguments.
        environment: variables to set.
        share: which part of the host's cores, see `agent.share_of_cores`.
    """

    index: int
    host: str
    command: Sequence[str]
    environment: dict[str, str]
    share: dict[str, Any]


@dataclass
class Member:
    """One process of a group, as the launcher sees it."""

    task: Task
    agent: subprocess.Popen[str]
    started: float
    pid: int | None = None
    status: int | None = None
    beat: float | None = None
    """When it was last heard to be alive."""
    hung: bool = False
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    def send(self, text: str) -> None:
        assert self.agent.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.agent.stdin.write(text + "\n")
            self.agent.stdin.flush()

    def let_go(self) -> None:
        """Have the agent end its process."""
        assert self.agent.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.agent.stdin.close()

    def how_it_ended(self) -> str:
        """Say it in words."""
        who = f"process {self.task.index} on {self.task.host} (pid {self.pid})"
        if self.hung:
            return f"{who} was not heard of any more"
        assert self.status is not None
        if self.status < 0:
            return f"{who} was ended by {signal.Signals(-self.status).name}"
        return f"{who} ended with exit status {self.status}"


class Group:
    """Starts processes, shows what they print, and sees to it that none is left behind.

    Args:
        tasks: one for each process.
        show: called with a process's number and a line that it printed.
        silence: seconds after which a process that was alive is taken for hung.
        say: called with what the group itself has to say.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        show: Callable[[int, str], None],
        *,
        silence: float,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.tasks = tasks
        self.show = show
        self.silence = silence
        self.say = say
        self.failed: Member | None = None
        """The process that the group ended for, if it did."""
        self.told_to_end = False
        """Whether somebody has sent it a signal."""
        self.killed_by: int | None = None
        """The second signal, if there was one."""
        self.members: list[Member] = []
        self._signals: deque[int] = deque()
        self._deadline: float | None = None
        self._heard: queue.Queue[Event] = queue.Queue()
        self._readers: list[threading.Thread] = []

    def run(self) -> int:
        """Run all processes to their end, and return the exit status of the group."""
        try:
            for task in self.tasks:
                self.members.append(self._start(task))
            while self._running() and not self._is_over():
                self._listen(LOOK_SECONDS)
                self._pass_signals_on()
                self._look_for_failures()
            return self._status()
        finally:
            self._end_all()

    def tell(self, number: int) -> None:
        """Pass a signal on to all processes, soon; may be called by a handler. The second kills."""
        self._signals.append(number)

    def _pass_signals_on(self) -> None:
        while self._signals:
            number = self._signals.popleft()
            name = signal.Signals(number).name
            left = sum(member.status is None for member in self.members)
            count = f"{left} process" if left == 1 else f"{left} processes"
            if self.told_to_end:
                self.say(f"{name} again: killing {count}.")
                self.killed_by = number
            else:
                self.say(
                    f"{name}: stopping {count}, which may write a checkpoint first. Press Ctrl-C "
                    "or send a signal again to kill them at once."
                )
                self.told_to_end = True
                self._send(number)

    def _is_over(self) -> bool:
        """Say whether processes that still run are to be killed.

        If one has failed, the others are told, and may end by themselves for a while. If it has
        left, they leave as well. Those that were sent a signal take the time that they need: a
        checkpoint may be large.
        """
        if self.killed_by is not None:
            return True
        if self.failed is None:
            return False
        if self._deadline is None:
            if self.told_to_end and not any(member.hung for member in self.members):
                return False
            self._deadline = time.monotonic() + GRACE_SECONDS
            if self.failed.status != EXIT_STATUS:
                self._send(signal.SIGTERM)
        return time.monotonic() > self._deadline

    def _send(self, number: int) -> None:
        for member in self.members:
            member.send(str(number))

    def _start(self, task: Task) -> Member:
        python = [sys.executable, "-u", "-c", Path(agent.__file__).read_text()]
        if task.host != LOCAL:
            python = ["ssh", "-o", "BatchMode=yes", task.host, shlex.join(python)]
        process = subprocess.Popen(
            python,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        member = Member(task, process, time.monotonic())
        said = {
            "command": list(task.command),
            "environment": task.environment,
            "folder": str(Path.cwd()),
            "heartbeat": HEARTBEAT,
            "share": task.share,
        }
        member.send(json.dumps(said))
        self._readers.append(threading.Thread(target=self._read, args=(member,), daemon=True))
        self._readers[-1].start()
        return member

    def _read(self, member: Member) -> None:
        """Pass on what an agent says; whatever else comes, such as ssh's errors, was printed."""
        assert member.agent.stdout is not None
        with member.agent.stdout as lines:
            for line in lines:
                kind, text = line[:1], line[1:].rstrip("\n")
                if kind in agent.KINDS and text.startswith('"'):
                    self._heard.put((member, kind, json.loads(text)))
                else:
                    self._heard.put((member, agent.OUTPUT, line.rstrip("\n")))
        self._heard.put((member, agent.ENDED, str(member.agent.wait())))

    def _listen(self, seconds: float) -> None:
        """Wait so long for what processes say, and take in what there is of it."""
        try:
            self._take(*self._heard.get(timeout=seconds))
            # No more than that: those that print without end must not keep us from all else.
            for _ in range(self._heard.qsize()):
                self._take(*self._heard.get_nowait())
        except queue.Empty:
            pass

    def _take(self, member: Member, kind: str, text: str) -> None:
        if kind == agent.OUTPUT:
            member.last_lines.append(text)
            self.show(member.task.index, text)
        elif kind == agent.ALIVE:
            member.beat = time.monotonic()
        elif kind == agent.STARTED:
            member.pid = int(text)
        elif kind == agent.ENDED and member.status is None:
            member.status = int(text)
            if member.status != 0 and self.failed is None:
                self.failed = member

    def _look_for_failures(self) -> None:
        now = time.monotonic()
        for member in self.members:
            quiet = member.beat is not None and now - member.beat > self.silence
            if member.status is None and quiet:
                member.hung = True
                self.failed = self.failed or member

    def _running(self) -> bool:
        return any(member.status is None for member in self.members)

    def _end_all(self) -> None:
        for member in self.members:
            member.let_go()
        for member in self.members:
            try:
                member.agent.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                member.agent.kill()
                member.agent.wait()
        for reader in self._readers:
            reader.join()
        self._listen(0)

    def _status(self) -> int:
        if self.killed_by is not None:
            return 128 + self.killed_by
        if self.failed is None:
            return 0
        if self.failed.hung:
            return 1
        status = self.failed.status or 0
        return 128 - status if status < 0 else status
