"""A group of processes that start, run and end together."""

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from convoy.checkpoint.preemption import EXIT_STATUS
from convoy.distributed.process import HEARTBEAT, LAST_HEARTBEAT
from convoy.error_messages import system_reason
from convoy.launch import agent

LOCAL = "localhost"
# The number of output lines that are kept for the message about a failure.
LAST_LINES = 20
# The time that the other processes have to end after one has failed.
GRACE_SECONDS = 10.0
# The longest wait for messages between two checks of signals and heartbeats.
POLL_SECONDS = 0.2

Message = tuple["Member", str, str]


@dataclass(frozen=True)
class Task:
    """The command of one process.

    Attributes:
        index: process index (rank) in the group.
        host: name of the host; `LOCAL` for this one.
        command: program and its arguments.
        environment: environment variables to add.
        cores: arguments of `agent.assigned_cores`.
    """

    index: int
    host: str
    command: Sequence[str]
    environment: Mapping[str, str]
    cores: Mapping[str, int]


@dataclass
class Member:
    """State of one process in the group.

    Attributes:
        task: its command.
        agent: local end of the agent that runs it.
        started: time of the start, by the monotonic clock.
        pid: process id on its host.
        exit_status: exit status; negative for a signal, `None` while it runs.
        last_heartbeat: time of the last heartbeat; `None` before the first, and when the process
            ends as it should.
        hung: whether its heartbeats have stopped.
        last_lines: its last output lines.
    """

    task: Task
    agent: subprocess.Popen[str]
    started: float
    pid: int | None = None
    exit_status: int | None = None
    last_heartbeat: float | None = None
    hung: bool = False
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    def send(self, text: str) -> None:
        """Send a line to the agent."""
        assert self.agent.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.agent.stdin.write(text + "\n")
            self.agent.stdin.flush()

    def disconnect(self) -> None:
        """Close the agent's input, which makes it kill the process."""
        assert self.agent.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.agent.stdin.close()

    def describe_failure(self) -> str:
        process = f"process {self.task.index} on {self.task.host} (pid {self.pid})"
        if self.hung:
            return f"{process} stopped sending heartbeats"
        assert self.exit_status is not None
        if self.exit_status < 0:
            return f"{process} was terminated by {signal.Signals(-self.exit_status).name}"
        return f"{process} exited with status {self.exit_status}"


class StartError(RuntimeError):
    """A process of a group cannot be started."""


class ProcessGroup:
    """Processes that start together and end with the group.

    Args:
        tasks: command of each process.
        show: callback for output: process index and line.
        heartbeat_timeout: seconds without a heartbeat after which a process counts as hung.
        log: callback for messages about the group itself.

    Attributes:
        failed: the first process that failed, if any.
        signalled: whether a signal was forwarded to the processes.
        killed_by: number of the second signal, if there was one.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        show: Callable[[int, str], None],
        *,
        heartbeat_timeout: float,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.tasks = tasks
        self.show = show
        self.heartbeat_timeout = heartbeat_timeout
        self.log = log
        self.failed: Member | None = None
        self.signalled = False
        self.killed_by: int | None = None
        self.members: list[Member] = []
        self._signals: deque[int] = deque()
        self._deadline: float | None = None
        self._messages: queue.Queue[Message] = queue.Queue()
        self._readers: list[threading.Thread] = []

    def run(self) -> int:
        """Run all processes to their end and return the exit status of the group.

        Raises:
            StartError: if one cannot be started; those that were started are killed.
        """
        try:
            for task in self.tasks:
                try:
                    self.members.append(self._start(task))
                except OSError as error:
                    raise StartError(
                        f"Process {task.index} of {len(self.tasks)} cannot be started: "
                        f"{system_reason(error)}. Start fewer processes, or raise the "
                        "system's limits."
                    ) from error
            while self._running() and not self._must_kill():
                self._receive(POLL_SECONDS)
                self._forward_signals()
                self._check_heartbeats()
            return self._exit_status()
        finally:
            self._end_all()

    def send_signal(self, number: int) -> None:
        """Forward a signal to all processes, or kill them if it is the second.

        Safe to call from a signal handler: the run loop does the work.
        """
        self._signals.append(number)

    def _forward_signals(self) -> None:
        while self._signals:
            number = self._signals.popleft()
            name = signal.Signals(number).name
            running = sum(member.exit_status is None for member in self.members)
            count = f"{running} process{'es' * (running != 1)}"
            if self.signalled:
                self.log(f"{name} again: killing {count}.")
                self.killed_by = number
            else:
                self.log(
                    f"{name}: stopping {count}, which may write a checkpoint first. Press Ctrl-C "
                    "or send a signal again to kill them at once."
                )
                self.signalled = True
                self._send_all(number)

    def _must_kill(self) -> bool:
        """Return whether processes that are still running must be killed now.

        After a failure, the other processes get SIGTERM and some time to end. If a process has
        exited with a checkpoint (`EXIT_STATUS`), the others also exit without a signal. After a
        signal from outside, nothing is killed, because writing a checkpoint may take a long time.
        """
        if self.killed_by is not None:
            return True
        if self.failed is None:
            return False
        if self._deadline is None:
            if self.signalled and not any(member.hung for member in self.members):
                return False
            self._deadline = time.monotonic() + GRACE_SECONDS
            if self.failed.exit_status != EXIT_STATUS:
                self._send_all(signal.SIGTERM)
        return time.monotonic() > self._deadline

    def _send_all(self, number: int) -> None:
        for member in self.members:
            member.send(str(number))

    def _start(self, task: Task) -> Member:
        command = [sys.executable, "-u", "-c", Path(agent.__file__).read_text()]
        if task.host != LOCAL:
            command = ["ssh", "-o", "BatchMode=yes", task.host, shlex.join(command)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        member = Member(task, process, time.monotonic())
        for_agent = {
            "folder": str(Path.cwd()),
            "heartbeat": HEARTBEAT,
            "last_heartbeat": LAST_HEARTBEAT,
        }
        member.send(json.dumps(asdict(task) | for_agent))
        reader = threading.Thread(target=self._read, args=(member,), daemon=True)
        reader.start()
        self._readers.append(reader)
        return member

    def _read(self, member: Member) -> None:
        """Queue the messages of an agent; other lines, such as ssh's errors, are output."""
        assert member.agent.stdout is not None
        with member.agent.stdout as lines:
            for line in lines:
                kind, text = line[:1], line[1:].rstrip("\n")
                if kind in agent.KINDS and text.startswith('"'):
                    self._messages.put((member, kind, json.loads(text)))
                else:
                    self._messages.put((member, agent.OUTPUT, line.rstrip("\n")))
        self._messages.put((member, agent.EXITED, str(member.agent.wait())))

    def _receive(self, seconds: float) -> None:
        """Wait for a message and handle all that are queued."""
        try:
            self._handle(*self._messages.get(timeout=seconds))
            # Only the currently queued messages, so that a process that prints endlessly does not
            # block the loop.
            for _ in range(self._messages.qsize()):
                self._handle(*self._messages.get_nowait())
        except queue.Empty:
            pass

    def _handle(self, member: Member, kind: str, text: str) -> None:
        if kind == agent.OUTPUT:
            member.last_lines.append(text)
            self.show(member.task.index, text)
        elif kind == agent.HEARTBEAT:
            member.last_heartbeat = time.monotonic()
        elif kind == agent.LAST_HEARTBEAT:
            member.last_heartbeat = None
        elif kind == agent.STARTED:
            member.pid = int(text)
        elif kind == agent.EXITED and member.exit_status is None:
            member.exit_status = int(text)
            if member.exit_status != 0 and self.failed is None:
                self.failed = member

    def _check_heartbeats(self) -> None:
        latest = time.monotonic() - self.heartbeat_timeout
        for member in self.members:
            late = member.last_heartbeat is not None and member.last_heartbeat < latest
            if member.exit_status is None and late:
                member.hung = True
                self.failed = self.failed or member

    def _running(self) -> bool:
        return any(member.exit_status is None for member in self.members)

    def _end_all(self) -> None:
        for member in self.members:
            member.disconnect()
        for member in self.members:
            try:
                member.agent.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                member.agent.kill()
                member.agent.wait()
        for reader in self._readers:
            reader.join()
        self._receive(0)

    def _exit_status(self) -> int:
        if self.killed_by is not None:
            return 128 + self.killed_by
        if self.failed is None:
            return 0
        if self.failed.hung:
            return 1
        status = self.failed.exit_status or 0
        return 128 - status if status < 0 else status
