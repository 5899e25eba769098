"""Command line of `convoy launch` and of `poprun`, Graphcore's name for it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from convoy.distributed.process import SILENCE_SECONDS
from convoy.launch.launcher import USAGE, launch, log
from convoy.launch.topology import LaunchError, Topology, parse_hosts
from convoy_command.parser import Parser

NUMA_AWARE = "--numa-aware"
NUMA_VALUES = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}
# Graphcore's options for its own hardware or for MPI.
NO_EFFECT = (
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


def make_parser() -> Parser:
    parser = Parser(
        prog="convoy launch",
        usage=USAGE,
        description="Run a program in several processes, on one host or many.",
    )
    add = parser.add_argument
    add(
        "--num-instances",
        "--num-instance",
        type=int,
        metavar="N",
        help="number of processes (default: 1)",
    )
    add("--num-replicas", type=int, metavar="N", help="number of replicas over all processes")
    add(
        "--devices-per-replica",
        "--ipus-per-replica",
        type=int,
        default=1,
        metavar="N",
        help="devices of one replica, for pipeline parallelism (default: 1)",
    )
    add(
        "--replicas",
        type=int,
        metavar="N",
        help="like --num-replicas, for a script that does not use Convoy: it runs inside a "
        "strategy's scope, where batch_size is the global batch size",
    )
    add(
        NUMA_AWARE,
        choices=NUMA_VALUES,
        default="0",
        metavar="1",
        help="keep each process on one NUMA node",
    )
    add("-H", "--host", metavar="A,B", help="hosts, reached by ssh (default: this one)")
    add("--hostfile", metavar="FILE", help="file with one host in each line")
    add("--port", type=int, default=0, help="port of the first process (default: a free one)")
    add("--max-restarts", type=int, default=0, metavar="N", help="restarts after a failure")
    add(
        "--heartbeat-timeout",
        type=float,
        default=SILENCE_SECONDS,
        metavar="SECONDS",
        help="time without a heartbeat after which a process counts as hung (default: 60)",
    )
    add("--only-output-from-instance", type=int, metavar="N", help="show output of one process")
    add("--print-topology", action="store_true", help="print which process runs where")
    add("-v", "--verbose", action="store_true", help="same as --print-topology")
    for name in NO_EFFECT:
        add(name, help=argparse.SUPPRESS)
    add("program", nargs=argparse.REMAINDER, help="Python script or other command")
    return parser


def main(words: Sequence[str]) -> int:
    """Run a program in several processes, on one host or many."""
    options = make_parser().parse_args(_with_numa_value(words))
    try:
        ignored = [name for name in NO_EFFECT if getattr(options, name[2:].replace("-", "_"))]
        if ignored:
            log(f"{', '.join(ignored)} have no effect here.")
        topology = _topology(options)
        if options.print_topology or options.verbose:
            log(topology.describe())
        return launch(
            options.program,
            topology,
            plain_script=options.replicas is not None,
            max_restarts=options.max_restarts,
            only_output_from=options.only_output_from_instance,
        )
    except LaunchError as error:
        log(str(error))
        return 2


def poprun() -> int:
    """Run `convoy launch` under Graphcore's name."""
    return main(sys.argv[1:])


def _topology(options: argparse.Namespace) -> Topology:
    if options.replicas is not None and options.num_replicas not in (None, options.replicas):
        raise LaunchError(
            f"--replicas {options.replicas} and --num-replicas {options.num_replicas} contradict "
            "each other. Pass one of them."
        )
    hosts = parse_hosts(options.host, options.hostfile)
    instances = options.num_instances or len(hosts)
    return Topology(
        instances,
        options.num_replicas or options.replicas or instances,
        options.devices_per_replica,
        hosts,
        NUMA_VALUES[options.numa_aware],
        options.port,
        options.heartbeat_timeout,
    )


def _with_numa_value(words: Sequence[str]) -> list[str]:
    """Insert the value of `--numa-aware`, which is optional there, if it is missing."""
    given = list(words)
    for place, word in enumerate(given):
        if word == NUMA_AWARE:
            if not NUMA_VALUES.keys() & given[place + 1 : place + 2]:
                given.insert(place + 1, "1")
            break
        if not word.startswith("-") and word.endswith(".py"):
            break
    return given
