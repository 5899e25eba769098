"""The command line of `convoy launch`, and of `poprun`, which is the same."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from convoy import distributed
from convoy.checkpoint.preemption import EXIT_STATUS
from convoy.devices import PER_REPLICA
from convoy.devices import VARIABLE as DEVICES
from convoy.launch.group import LOCAL, Group
from convoy.launch.topology import LOOPBACK, LaunchError, Topology, read_hosts
from convoy_command.parser import Parser

# How Python programs are started: unbuffered, and by what notices how they end.
RUNNER = ("-u", "-m", "convoy_command.program")
USAGE = "convoy launch [options] script.py [its arguments]"
# What every process prints when the collectives connect; it says nothing that went wrong.
GREETING = re.compile(r"\[Gloo\] Rank \d+ is connected to ")
# Graphcore's, for its own hardware or for MPI.
WITHOUT_EFFECT = (
    "--executable-cache-path",
    "--import-config",
    "--export-config",
    "--mpi-global-args",
    "--mpi-local-args",
    "--num-ilds",
    "--offline-mode",
    "--remove-partition",
    "--reset-partition",
    "--update-partition",
    "--vipu-allocation",
    "--vipu-cluster",
    "--vipu-partition",
    "--vipu-server-host",
    "--vipu-server-port",
    "--vipu-server-timeout",
)
# What says that a cluster has started us, once for each process.
CLUSTERS = {
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    "MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "Kubernetes": ("JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"),
}
_ON_OR_OFF = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


def main(words: Sequence[str]) -> int:
    """Run a program in several processes, on one host or many."""
    options = make_parser().parse_args(_with_values(words))
    try:
        return _launch(options)
    except LaunchError as error:
        print(f"convoy launch: {error}", file=sys.stderr)
        return 2


def poprun() -> int:
    """Do what `convoy launch` does, by Graphcore's name for it."""
    return main(sys.argv[1:])


def make_parser() -> Parser:
    parser = Parser(
        prog="convoy launch",
        usage=USAGE,
        description="Run a program in several processes, on one host or many.",
    )
    add = parser.add_argument
    add("--num-instances", type=int, metavar="N", help="processes (default: 1)")
    add("--num-replicas", type=int, metavar="N", help="copies of the model, over all processes")
    add(
        "--devices-per-replica",
        "--ipus-per-replica",
        type=int,
        default=1,
        metavar="N",
        help="more than one for models in stages (default: 1)",
    )
    add(
        "--replicas",
        type=int,
        metavar="N",
        help="as --num-replicas, for a script that knows nothing of Convoy: it runs inside of a "
        "strategy's scope, where batch_size is the global one",
    )
    add(
        "--numa-aware",
        type=_on_or_off,
        default=False,
        metavar="1",
        help="keep a process on one memory node",
    )
    add("-H", "--host", metavar="A,B", help="hosts, reached by ssh (default: this one)")
    add("--hostfile", metavar="FILE", help="the same, one in a line")
    add("--port", type=int, default=0, help="of the first process (default: a free one)")
    add("--max-restarts", type=int, default=0, metavar="N", help="start all again when one fails")
    add(
        "--heartbeat-timeout",
        type=float,
        default=distributed.SILENCE_SECONDS,
        metavar="SECONDS",
        help="when a process that says nothing is taken for hung (default: 60)",
    )
    add("--only-output-from-instance", type=int, metavar="N", help="show what one process prints")
    add("--print-topology", action="store_true", help="say which process runs where")
    add("-v", "--verbose", action="store_true", help="the same")
    for name in WITHOUT_EFFECT:
        add(name, help=argparse.SUPPRESS)
    add("program", nargs=argparse.REMAINDER, help="a Python script, or any command")
    return parser


def _with_values(words: Sequence[str]) -> list[str]:
    """Give `--numa-aware` the value that it may go without."""
    given = list(words)
    for place, word in enumerate(given):
        if word == "--numa-aware" and (given[place + 1 : place + 2] or [""])[0] not in _ON_OR_OFF:
            given.insert(place + 1, "1")
            break
        if not word.startswith("-") and word.endswith(".py"):
            break
    return given


def _on_or_off(text: str) -> bool:
    if text not in _ON_OR_OFF:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 1 nor 0")
    return _ON_OR_OFF[text]


def _launch(options: argparse.Namespace) -> int:
    if not options.program:
        raise LaunchError(f"There is no program to run. Usage: {USAGE}")
    command = _command(options)
    without_effect = [n for n in WITHOUT_EFFECT if getattr(options, n[2:].replace("-", "_"))]
    if without_effect:
        _say(f"{', '.join(without_effect)} have no effect here.")
    topology = _topology(options)
    cluster = _cluster()
    if cluster is not None:
        _become_one_of(cluster, topology, command)
    if options.print_topology or options.verbose:
        _say(topology.describe())
    if options.heartbeat_timeout <= 0:
        raise LaunchError(f"--heartbeat-timeout {options.heartbeat_timeout:g} is too short.")
    return _run(options, topology, command)


def _command(options: argparse.Namespace) -> list[str]:
    program = list(options.program)
    if program[0] == "--":
        program = program[1:]
    if program and program[0].endswith(".py"):
        program = [sys.executable, *program]
    if len(program) < 2 or not program[1].endswith(".py"):
        if options.replicas is not None:
            raise LaunchError(f"--replicas runs Python scripts, but received {program[:2]}.")
        if len(program) > 2 and program[1] == "-m" and _is_python(program[0]):
            return [program[0], *RUNNER, *program[1:]]
        return program
    script = program[1]
    if options.host is None and options.hostfile is None and not os.path.exists(script):
        raise LaunchError(f"{script} does not exist.")
    if options.replicas is not None:
        program[1:1] = ["-m", "convoy.launch.plain_script"]
    return [program[0], *RUNNER, *program[1:]]


def _is_python(program: str) -> bool:
    return program == sys.executable or os.path.basename(program).startswith("python")


def _topology(options: argparse.Namespace) -> Topology:
    if options.replicas is not None and options.num_replicas not in (None, options.replicas):
        raise LaunchError(
            f"--replicas {options.replicas} and --num-replicas {options.num_replicas} contradict "
            "each other. Pass one of them."
        )
    if options.host and options.hostfile:
        raise LaunchError("--host and --hostfile were both passed. Pass one of them.")
    hosts: tuple[str, ...] = (LOCAL,)
    if options.host:
        hosts = tuple(host.strip() for host in options.host.split(",") if host.strip())
    elif options.hostfile:
        hosts = read_hosts(options.hostfile)
    if set(hosts) <= {LOCAL, LOOPBACK}:
        hosts = (LOCAL,)
    replicas = options.num_replicas or options.replicas
    instances = options.num_instances or len(hosts)
    return Topology(
        instances,
        replicas or instances,
        options.devices_per_replica,
        hosts,
        options.numa_aware,
        options.port,
        options.heartbeat_timeout,
    )


def _cluster() -> str | None:
    """Return what has started us as one of several processes, if something has."""
    for name, variables in CLUSTERS.items():
        if all(variable in os.environ for variable in variables):
            return name
    return None


def _become_one_of(cluster: str, topology: Topology, command: list[str]) -> None:
    """Go on as the program, at the place that a cluster has given us."""
    _say(f"started by {cluster}, whose addresses are used.")
    environment = os.environ | {
        distributed.COORDINATOR: distributed.CLUSTER,
        distributed.SILENCE: str(topology.silence),
        DEVICES: str(topology.devices),
        PER_REPLICA: str(topology.devices_per_replica),
    }
    os.execvpe(command[0], command, environment)


def _run(options: argparse.Namespace, topology: Topology, command: list[str]) -> int:
    """Run the group, and again as often as was asked for."""
    only = options.only_output_from_instance
    width = len(str(topology.instances - 1))

    def show(index: int, line: str) -> None:
        if only in (None, index) and not GREETING.match(line):
            print(f"[{index:>{width}}] {line}", flush=True)

    for restarts_left in range(options.max_restarts, -1, -1):
        group = Group(topology.tasks(command), show, silence=options.heartbeat_timeout, say=_say)
        with _signals_to(group):
            status = group.run()
        failed = group.failed
        if failed is None or status == EXIT_STATUS or group.told_to_end:
            return status
        _say(f"{failed.how_it_ended()} after {time.monotonic() - failed.started:.0f} s.")
        if lines := [line for line in failed.last_lines if not GREETING.match(line)]:
            last = "\n".join(f"  [{failed.task.index}] {line}" for line in lines)
            _say(f"its last lines were:\n{last}")
        if restarts_left:
            _say(f"all start again; {restarts_left - 1} restarts are left after this one.")
    return status


@contextlib.contextmanager
def _signals_to(group: Group) -> Iterator[None]:
    """Pass SIGTERM and SIGINT on to a group, for its processes to leave together.

    What we were started to ignore, as shells start jobs in the background, stays ignored.
    """

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        group.tell(number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    print(f"convoy launch: {text}", file=sys.stderr, flush=True)
