"""Command line of `convoy launch` and of `poprun`, Graphcore's name for it."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NoReturn

from convoy.compile.failures import TargetError
from convoy.compile.targets import parse_target
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
from convoy.launch.cluster import AUTO, CLUSTERS, NONE, Cluster, find_cluster
from convoy.launch.jobs import WRITERS
from convoy.launch.jobs.job import Accelerators, Job
from convoy.launch.launcher import command_name, launch, log, program_words, run_in_cluster, usage
from convoy.launch.process_group import LOCAL, StartError
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

    clusters:
        write: print a job for a cluster instead of launching: slurm, kubernetes or tpu-vm
        target: devices of the written job, as for convoy compile: tpu:v5e:4x4, gpu:h100:4x8
        cluster: cluster that has started this process: slurm, mpi, kubernetes, tpu-vm or none
            (default: found by its variables, except tpu-vm)
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
    write: Annotated[str | None, Option(choices=WRITERS)] = None
    target: str | None = None
    cluster: Annotated[str, Option(choices=(AUTO, NONE, *CLUSTERS))] = AUTO

    def __post_init__(self) -> None:
        if self.target is not None and self.write is None:
            raise ValueError(
                "--target was passed without --write. Pass both, or leave --target out: a launch "
                "uses the devices of its hosts."
            )
        if self.replicas is not None and self.num_replicas not in (None, self.replicas):
            raise ValueError(
                f"--replicas {self.replicas} and --num-replicas {self.num_replicas} contradict "
                "each other. Pass one of them."
            )


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
            log(f"No effect here: {', '.join(ignored)}.")
        hosts = parse_hosts(host, options.hostfile)
        if options.write is not None:
            job = _job(options, program, hosts)
            print(WRITERS[options.write](job), end="")
            return 0
        cluster = find_cluster(options.cluster)
        if cluster is not None:
            _run_in_cluster(options, program, cluster)
        topology = _topology(options, options.num_instances or len(hosts), hosts)
        if prints_topology:
            log(topology.describe())
        return launch(
            program,
            topology,
            plain_script=options.replicas is not None,
            max_restarts=options.max_restarts,
            only_output_from=options.only_output_from_instance,
        )
    except (ConfigurationError, LaunchError, TargetError) as error:
        log(str(error))
        return 2
    except StartError as error:
        log(str(error))
        return 1


def poprun() -> int:
    """Run `convoy launch` under Graphcore's name."""
    return main(sys.argv[1:])


def _topology(options: LaunchOptions, instances: int, hosts: tuple[str, ...]) -> Topology:
    return Topology(
        instances,
        options.num_replicas or options.replicas or instances,
        options.devices_per_replica,
        hosts,
        NUMA_VALUES[options.numa_aware],
        options.port,
        options.heartbeat_timeout,
    )


def _run_in_cluster(options: LaunchOptions, program: Sequence[str], cluster: Cluster) -> NoReturn:
    """Run the program in this process, which a cluster has started."""
    place = cluster.find_place(options.num_instances, options.port)
    log(f"process {place.index} of {place.count}, started by {cluster.title}.")
    without_effect = {
        "--max-restarts": options.max_restarts > 0,
        "--numa-aware": NUMA_VALUES[options.numa_aware],
        "--only-output-from-instance": options.only_output_from_instance is not None,
    }
    if given := [name for name, is_given in without_effect.items() if is_given]:
        log(f"No effect in a process of {cluster.title}: {', '.join(given)}.")
    topology = _topology(options, place.count, (LOCAL,))
    run_in_cluster(program, topology, place, plain_script=options.replicas is not None)


def _job(options: LaunchOptions, program: Sequence[str], hosts: tuple[str, ...]) -> Job:
    """Return the job that `--write` writes."""
    if options.only_output_from_instance is not None:
        raise LaunchError("--only-output-from-instance has no meaning with --write. Leave it out.")
    words = tuple(program_words(program))
    names = () if hosts == (LOCAL,) else hosts
    devices = _accelerators(options.target)
    hosts_of_devices = devices.hosts if devices else options.num_instances or 1
    instances = options.num_instances or (len(names) or hosts_of_devices)
    count = len(names) or min(hosts_of_devices, instances)
    if instances % count:
        raise LaunchError(
            f"--num-instances {instances} is not a multiple of {count} hosts. Pass a multiple of "
            f"{count}."
        )
    replicas = options.num_replicas or options.replicas
    if replicas is None and devices is not None:
        replicas = devices.devices // options.devices_per_replica
    topology = _topology(
        replace(options, num_replicas=replicas, replicas=None), instances, names or (LOCAL,)
    )
    if devices is not None and topology.devices * instances != devices.devices:
        raise LaunchError(
            f"--target {options.target} has {devices.devices} devices, but {topology.replicas} "
            f"replicas with {topology.devices_per_replica} devices take "
            f"{topology.devices * instances}. Leave --num-replicas out, or pass another target."
        )
    return Job(
        words,
        topology,
        count,
        names,
        options.max_restarts,
        options.replicas is not None,
        devices,
    )


def _accelerators(name: str | None) -> Accelerators | None:
    if name is None:
        return None
    target = parse_target(name)
    return Accelerators(
        target.platform, target.kind, target.shape, target.hosts, target.devices // target.hosts
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
