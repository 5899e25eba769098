"""Launching a program in the processes of a topology: its command, signals and restarts."""

import contextlib
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

from convoy.checkpoint.preemption import EXIT_STATUS
from convoy.distributed.process import Place
from convoy.error_messages import system_reason
from convoy.launch.process_group import LAST_LINES, LOCAL, Member, ProcessGroup
from convoy.launch.topology import LaunchError, Topology
from convoy_command.cli import drop_output

# Runs Python programs unbuffered and reports their exit status to the other processes.
RUNNER = ("-u", "-m", "convoy_command.program")
# Printed by every process when gloo connects; it does not indicate a problem.
GLOO_GREETING = re.compile(r"\[Gloo\] Rank \d+ is connected to ")
# The number of recent lines that are assumed to be visible: the last lines of a failed process are
# not repeated if they are among them.
VISIBLE_LINES = 2 * LAST_LINES


def launch(
    program: Sequence[str],
    topology: Topology,
    *,
    plain_script: bool = False,
    max_restarts: int = 0,
    only_output_from: int | None = None,
) -> int:
    """Run a program in all processes of a topology and return the exit status.

    Args:
        program: Python script or other program, and its arguments.
        topology: processes and devices.
        plain_script: whether the script does not use Convoy and runs inside a strategy's scope.
        max_restarts: number of times that all processes are restarted after a failure.
        only_output_from: index of the only process whose output is shown; by default all are.

    Raises:
        LaunchError: if the program cannot be run in this way.
    """
    command = _command(program, topology, plain_script=plain_script)
    if only_output_from is not None and only_output_from >= topology.instances:
        raise LaunchError(
            f"--only-output-from-instance {only_output_from} does not exist. Pass less than "
            f"{topology.instances}, the number of instances."
        )
    topology.check_port()
    width = len(str(topology.instances - 1))
    visible: deque[tuple[int, str]] = deque(maxlen=VISIBLE_LINES)

    def show(index: int, line: str) -> None:
        if only_output_from in (None, index) and not GLOO_GREETING.match(line):
            visible.append((index, line))
            print_output(f"[{index:>{width}}] {line}")

    for restarts_left in range(max_restarts, -1, -1):
        group = ProcessGroup(
            topology.tasks(command),
            show,
            heartbeat_timeout=topology.heartbeat_timeout,
            log=log,
        )
        with _signals_forwarded_to(group):
            status = group.run()
        if group.failed is None or status == EXIT_STATUS or group.signalled:
            return status
        _log_failure(group.failed, [line for i, line in visible if i == group.failed.task.index])
        if restarts_left:
            log(f"restarting all processes; {restarts_left - 1} restarts are left after this one.")
    return status


def run_in_cluster(
    program: Sequence[str], topology: Topology, place: Place, *, plain_script: bool = False
) -> NoReturn:
    """Replace this process, which a cluster has started, with the program.

    Args:
        program: Python script or other program, and its arguments.
        topology: processes and devices.
        place: place of this process among them.
        plain_script: whether the script does not use Convoy and runs inside a strategy's scope.

    Raises:
        LaunchError: if the program cannot be run in this way.
    """
    command = _command(program, topology, plain_script=plain_script)
    environment = os.environ | topology.environment_at(place)
    os.execvpe(command[0], list(command), environment)


def print_output(line: str) -> None:
    """Print a line of a process; the run continues if it cannot be written (full disk)."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        log(f"output cannot be written: {system_reason(error)}. The processes continue without it.")
        # Writing the rest of the buffer at exit would fail again.
        drop_output()


def command_name() -> str:
    """Return the name by which the user called this command."""
    return "poprun" if os.path.basename(sys.argv[0]) == "poprun" else "convoy launch"


def usage() -> str:
    return f"{command_name()} [options] script.py [its arguments]"


def log(text: str) -> None:
    print(f"{command_name()}: {text}", file=sys.stderr, flush=True)


def program_words(program: Sequence[str]) -> list[str]:
    """Return a program and its arguments, without a leading `--`.

    Raises:
        LaunchError: if there is none.
    """
    words = list(program[1:] if program[:1] == ["--"] else program)
    if not words:
        raise LaunchError(f"There is no program to run. Usage: {usage()}")
    return words


def _command(program: Sequence[str], topology: Topology, *, plain_script: bool) -> list[str]:
    """Return the command of a process; Python scripts and modules are run by `RUNNER`."""
    words = program_words(program)
    if words[0].endswith(".py"):
        words.insert(0, sys.executable)
    if len(words) > 1 and words[1].endswith(".py"):
        if topology.hosts == (LOCAL,) and not os.path.exists(words[1]):
            raise LaunchError(f"{words[1]} does not exist. Pass the path of a script.")
        plain = ["-m", "convoy.launch.plain_script"] if plain_script else []
        return [words[0], *RUNNER, *plain, *words[1:]]
    if plain_script:
        raise LaunchError(f"--replicas runs Python scripts, but received {words[:2]}. Pass one.")
    is_python = words[0] == sys.executable or os.path.basename(words[0]).startswith("python")
    if is_python and len(words) > 2 and words[1] == "-m":
        return [words[0], *RUNNER, *words[1:]]
    return words


def _log_failure(failed: Member, visible: Sequence[str]) -> None:
    """Report a failed process, and repeat its last lines unless they were printed recently."""
    log(f"{failed.describe_failure()} after {time.monotonic() - failed.started:.0f} s.")
    lines = [line for line in failed.last_lines if not GLOO_GREETING.match(line)]
    if lines and lines != visible[-len(lines) :]:
        log("its last lines were:\n" + "\n".join(f"  [{failed.task.index}] {x}" for x in lines))


@contextlib.contextmanager
def _signals_forwarded_to(group: ProcessGroup) -> Iterator[None]:
    """Forward SIGTERM and SIGINT to a group.

    A signal that this process was started to ignore, such as SIGINT in a background job of a
    shell, stays ignored.
    """

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        group.send_signal(number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    handled = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    handlers = {number: signal.signal(number, forward) for number in handled}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
