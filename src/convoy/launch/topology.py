"""The topology of a launched run: hosts, processes, replicas and devices."""

import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from convoy.devices import MAX_VIRTUAL, PER_REPLICA
from convoy.devices import VARIABLE as DEVICES
from convoy.distributed import process as variables
from convoy.error_messages import system_reason
from convoy.launch.process_group import LOCAL, Task

LOOPBACK = "127.0.0.1"
# The coordinator's port on several hosts, where a free port cannot be determined in advance.
PORT = 29411
# Prefixes of environment variables that are copied to other hosts.
_COPIED = ("CONVOY_", "JAX_", "KERAS_", "OMP_", "PYTHONPATH", "XLA_")


class LaunchError(ValueError):
    """A run that cannot be launched as requested."""


@dataclass(frozen=True)
class Topology:
    """The processes of a run and their devices.

    Attributes:
        instances: number of processes (Graphcore's instances).
        replicas: number of replicas over all processes.
        devices_per_replica: devices of one replica; more than one for pipeline parallelism.
        hosts: host names; each gets an equal block of processes.
        numa_aware: whether each process stays on one NUMA node.
        port: port of the coordinator, which is process 0; 0 selects a free one.
        heartbeat_timeout: seconds without a heartbeat after which a process counts as hung.

    Raises:
        LaunchError: if processes, replicas, devices and hosts do not divide evenly.
    """

    instances: int
    replicas: int
    devices_per_replica: int = 1
    hosts: tuple[str, ...] = (LOCAL,)
    numa_aware: bool = False
    port: int = 0
    heartbeat_timeout: float = variables.SILENCE_SECONDS

    def __post_init__(self) -> None:
        for name, value in (
            ("--num-instances", self.instances),
            ("--num-replicas", self.replicas),
            ("--devices-per-replica", self.devices_per_replica),
        ):
            if value < 1:
                raise LaunchError(f"{name} {value} is too small. Pass 1 or more.")
        if not 0 < self.heartbeat_timeout < math.inf:
            raise LaunchError(
                f"--heartbeat-timeout {self.heartbeat_timeout:g} is not a time. Pass a number of "
                "seconds above 0."
            )
        if self.replicas % self.instances and not self._splits_replicas():
            near = max(1, round(self.replicas / self.instances)) * self.instances
            raise LaunchError(
                f"--num-replicas {self.replicas} is not a multiple of --num-instances "
                f"{self.instances}. Pass --num-replicas {near}, or fewer instances; or, for stages "
                "in several processes, a number of instances that divides the devices of each "
                "replica."
            )
        if self.instances % len(self.hosts):
            raise LaunchError(
                f"--num-instances {self.instances} is not a multiple of {len(self.hosts)} hosts "
                f"({', '.join(self.hosts)}). Pass a multiple of {len(self.hosts)}."
            )
        if self.instances_per_host > MAX_VIRTUAL:
            raise LaunchError(
                f"--num-instances {self.instances} is too large. Pass at most "
                f"{MAX_VIRTUAL * len(self.hosts)}."
            )
        if self.devices > MAX_VIRTUAL:
            raise LaunchError(
                f"--num-replicas {self.replicas} with --devices-per-replica "
                f"{self.devices_per_replica} is too large: a process has at most {MAX_VIRTUAL} "
                "devices. Pass fewer replicas, or more instances."
            )

    @property
    def devices(self) -> int:
        """Devices of one process."""
        return self.replicas * self.devices_per_replica // self.instances

    @property
    def instances_per_host(self) -> int:
        return self.instances // len(self.hosts)

    def _splits_replicas(self) -> bool:
        """Return whether the stages of each replica are in several processes."""
        processes, remainder = divmod(self.instances, self.replicas)
        return not remainder and self.devices_per_replica % processes == 0

    def tasks(self, command: Sequence[str]) -> list[Task]:
        """Return the task of each process.

        Args:
            command: program and its arguments.
        """
        local_size = self.instances_per_host
        coordinator = self._coordinator()
        tasks = []
        for index in range(self.instances):
            host = self.hosts[index // local_size]
            cores = {
                "local_rank": index % local_size,
                "local_size": local_size,
                "numa_aware": self.numa_aware,
            }
            environment = self._environment(index, host, coordinator)
            tasks.append(Task(index, host, command, environment, cores))
        return tasks

    def check_port(self) -> None:
        """Check that this host can listen on the coordinator's port, before anything starts.

        Raises:
            LaunchError: if it cannot.
        """
        if self.hosts != (LOCAL,) or self.instances == 1 or not self.port:
            return
        try:
            socket.create_server((LOOPBACK, self.port)).close()
        except OSError as error:
            raise LaunchError(
                f"--port {self.port} cannot be used: {system_reason(error)}. Pass another --port, "
                "or end the program that uses it."
            ) from None

    def describe(self) -> str:
        """Return a summary with one line for each process."""
        lines = [
            f"{self.instances} processes, {self.replicas} replicas with {self.devices_per_replica} "
            f"devices each"
        ]
        lines += [
            f"  process {index}: {self.hosts[index // self.instances_per_host]}, "
            f"{self._devices_of(index)}"
            for index in range(self.instances)
        ]
        return "\n".join(lines)

    def _devices_of(self, index: int) -> str:
        first, width = index * self.devices, self.devices_per_replica
        if self.devices >= width:
            return f"replicas {first // width} to {(first + self.devices) // width - 1}"
        last = first % width + self.devices - 1
        return f"devices {first % width} to {last} of replica {first // width}"

    def _coordinator(self) -> str:
        if self.hosts == (LOCAL,):
            return f"{LOOPBACK}:{self.port or free_port()}"
        return f"{self.hosts[0]}:{self.port or PORT}"

    def _environment(self, index: int, host: str, coordinator: str) -> dict[str, str]:
        copied: dict[str, str] = {}
        if host != LOCAL:
            copied = {k: v for k, v in os.environ.items() if k.startswith(_COPIED)}
        address = LOOPBACK if self.hosts == (LOCAL,) else host
        place = variables.Place(coordinator, self.instances, index, address)
        return copied | self.environment_at(place)

    def environment_at(self, place: variables.Place) -> dict[str, str]:
        """Return Convoy's environment variables for the process at a place."""
        environment = {DEVICES: str(self.devices), PER_REPLICA: str(self.devices_per_replica)}
        if place.count > 1:
            environment |= {
                variables.COORDINATOR: place.coordinator,
                variables.COUNT: str(place.count),
                variables.INDEX: str(place.index),
                variables.SILENCE: str(self.heartbeat_timeout),
            }
            if place.address is not None:
                environment[variables.ADDRESS] = place.address
        return environment


def free_port() -> int:
    """Return a free port of this host."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return listener.getsockname()[1]


def parse_hosts(names: str | None, file: str | None) -> tuple[str, ...]:
    """Return the hosts of `--host` or `--hostfile`.

    Args:
        names: host names, separated by commas.
        file: path of a file with one host name in each line; further words are ignored.

    Raises:
        LaunchError: if both are given, or the file cannot be read or names no host.
    """
    if names and file:
        raise LaunchError("--host and --hostfile were both passed. Pass one of them.")
    hosts = (LOCAL,) if not names else tuple(filter(None, map(str.strip, names.split(","))))
    if file:
        try:
            lines = Path(file).read_text().splitlines()
        except OSError as error:
            raise LaunchError(
                f"--hostfile {file} cannot be read: {system_reason(error)}. Pass another file."
            ) from error
        hosts = tuple(words[0] for line in lines if (words := line.split("#")[0].split()))
        if not hosts:
            raise LaunchError(f"--hostfile {file} names no host. Write one in each line.")
    return (LOCAL,) if set(hosts) <= {LOCAL, LOOPBACK} else hosts
