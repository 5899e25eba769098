"""Launching a program in the processes of a topology: its command, signals, restarts, clusters."""

import contextlib
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType

from convoy.checkpoint.preemption import EXIT_STATUS
from convoy.devices import PER_REPLICA
from convoy.devices import VARIABLE as DEVICES
from convoy.distributed.process import CLUSTER, COORDINATOR, SILENCE
from convoy.launch.process_group import LAST_LINES, LOCAL, Member, ProcessGroup
from convoy.launch.topology import LaunchError, Topology

# Runs Python programs unbuffered and reports their exit status to the other processes.
RUNNER = ("-u", "-m", "convoy_command.program")
# Printed by every process when gloo connects; it does not indicate a problem.
GLOO_GREETING = re.compile(r"\[Gloo\] Rank \d+ is connected to ")
# Environment variables that a cluster sets in each process that it starts.
CLUSTERS = {
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    "MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "Kubernetes": ("JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"),
}
# The lines that count as still in view: a failed process's last lines among them are not repeated.
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

    In a process that a cluster has started, the program replaces this process instead.

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
    for cluster, variables in CLUSTERS.items():
        if all(variable in os.environ for variable in variables):
            _replace_process(command, topology, cluster)
    if only_output_from is not None and only_output_from >= topology.instances:
        raise LaunchError(
            f"--only-output-from-instance {only_output_from} does not exist. Pass less than "
            f"{topology.instances}, the number of instances."
        )
    topology.check_port()
    width = len(str(topology.instances - 1))
    visible: deque[tuple[int, str]] = deque(maxlen=VISIBLE_LINES)
    output = Output()

    def show(index: int, line: str) -> None:
        if only_output_from in (None, index) and not GLOO_GREETING.match(line):
            visible.append((index, line))
            output.print(f"[{index:>{width}}] {line}")

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


class Output:
    """The standard output of a run, which continues if output cannot be written (full disk)."""

    def __init__(self) -> None:
        self._failed = False

    def print(self, line: str) -> None:
        try:
            print(line, flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            if not self._failed:
                log(
                    f"output cannot be written: {error.strerror}. The processes continue without "
                    "it."
                )
            self._failed = True


def command_name() -> str:
    """Return the name by which the user called this command."""
    return "poprun" if os.path.basename(sys.argv[0]) == "poprun" else "convoy launch"


def usage() -> str:
    return f"{command_name()} [options] script.py [its arguments]"


def log(text: str) -> None:
    print(f"{command_name()}: {text}", file=sys.stderr, flush=True)


def _command(program: Sequence[str], topology: Topology, *, plain_script: bool) -> list[str]:
    """Return the command of a process; Python scripts and modules are run by `RUNNER`."""
    words = list(program[1:] if program[:1] == ["--"] else program)
    if not words:
        raise LaunchError(f"There is no program to run. Usage: {usage()}")
    if words[0].endswith(".py"):
        words.insert(0, sys.executable)
    if len(words) > 1 and words[1].endswith(".py"):
        if topology.hosts == (LOCAL,) and not os.path.exists(words[1]):
            raise LaunchError(f"{words[1]} does not exist.")
        plain = ["-m", "convoy.launch.plain_script"] if plain_script else []
        return [words[0], *RUNNER, *plain, *words[1:]]
    if plain_script:
        raise LaunchError(f"--replicas runs Python scripts, but received {words[:2]}.")
    is_python = words[0] == sys.executable or os.path.basename(words[0]).startswith("python")
    if is_python and len(words) > 2 and words[1] == "-m":
        return [words[0], *RUNNER, *words[1:]]
    return words


def _replace_process(command: Sequence[str], topology: Topology, cluster: str) -> None:
    """Replace this process by the program; JAX finds its place from the cluster's variables."""
    log(f"started by {cluster}, whose addresses are used.")
    environment = {
        COORDINATOR: CLUSTER,
        SILENCE: str(topology.heartbeat_timeout),
        DEVICES: str(topology.devices),
        PER_REPLICA: str(topology.devices_per_replica),
    }
    os.execvpe(command[0], list(command), os.environ | environment)


def _log_failure(failed: Member, visible: Sequence[str]) -> None:
    """Report a failed process, and repeat its last lines unless they are still in view."""
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
