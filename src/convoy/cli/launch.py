"""Command line of `convoy launch` and of `poprun`, Graphcore's name for it."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from convoy.configuration import (
    Configuration,
    ConfigurationError,
    Count,
    Option,
    Port,
    Positive,
    WholeNotNegative,
    add_flags,
    read,
)
from convoy.distributed.process import SILENCE_SECONDS
from convoy.launch.launcher import command_name, launch, log, usage
from convoy.launch.process_group import StartError
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


@dataclass(frozen=True)
class LaunchOptions(Configuration, all_flags=True):
    """The options of `convoy launch` that have values.

    processes and devices:
        num_instances: number of processes (default: 1)
        num_replicas: number of replicas over all processes
        devices_per_replica: devices of one replica, for pipeline parallelism (default: 1)
        replicas: like --num-replicas, for a script that does not use Convoy: it runs inside a
            strategy's scope, where batch_size is the global batch size
        numa_aware: keep each process on one NUMA node
        hostfile: file with one host in each line
        port: port of the first process (default: a free one)

    failures and output:
        max_restarts: restarts after a failure
        heartbeat_timeout: seconds without a heartbeat after which a process counts as hung
            (default: 60)
        only_output_from_instance: index of the only process whose output is shown
    """

    num_instances: Annotated[Count | None, Option(aliases=("num-instance",))] = None
    num_replicas: Count | None = None
    devices_per_replica: Annotated[Count, Option(aliases=("ipus-per-replica",))] = 1
    replicas: Count | None = None
    numa_aware: Annotated[str, Option(choices=NUMA_VALUES)] = "0"
    hostfile: str | None = None
    port: Port = 0
    max_restarts: WholeNotNegative = 0
    heartbeat_timeout: Positive = SILENCE_SECONDS
    only_output_from_instance: WholeNotNegative | None = None


def make_parser() -> Parser:
    parser = Parser(
        prog=command_name(),
        usage=usage(),
        description="Run a program in several processes, on one host or many.",
    )
    add_flags(parser, LaunchOptions)
    add = parser.add_argument
    add("-H", "--host", metavar="A,B", help="hosts, reached by ssh (default: this one)")
    add("--print-topology", action="store_true", help="print which process runs where")
    add("-v", "--verbose", action="store_true", help="same as --print-topology")
    for name in NO_EFFECT:
        add(name, dest=name, help=argparse.SUPPRESS)
    add("program", nargs=argparse.REMAINDER, help="Python script or other command")
    return parser


def main(words: Sequence[str]) -> int:
    """Run a program in several processes, on one host or many."""
    flags = vars(make_parser().parse_args(_with_numa_value(words)))
    program, host = flags.pop("program"), flags.pop("host")
    prints_topology = flags.pop("print_topology") | flags.pop("verbose")
    ignored = [name for name in NO_EFFECT if flags.pop(name)]
    try:
        options = read(LaunchOptions, flags, flags=True)
        if ignored:
            log(f"{', '.join(ignored)} have no effect here.")
        topology = _topology(options, parse_hosts(host, options.hostfile))
        if prints_topology:
            log(topology.describe())
        return launch(
            program,
            topology,
            plain_script=options.replicas is not None,
            max_restarts=options.max_restarts,
            only_output_from=options.only_output_from_instance,
        )
    except (ConfigurationError, LaunchError) as error:
        log(str(error))
        return 2
    except StartError as error:
        log(str(error))
        return 1


def poprun() -> int:
    """Run `convoy launch` under Graphcore's name."""
    return main(sys.argv[1:])


def _topology(options: LaunchOptions, hosts: tuple[str, ...]) -> Topology:
    if options.replicas is not None and options.num_replicas not in (None, options.replicas):
        raise LaunchError(
            f"--replicas {options.replicas} and --num-replicas {options.num_replicas} contradict "
            "each other. Pass one of them."
        )
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
