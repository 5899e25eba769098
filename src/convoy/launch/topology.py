"""Which process runs where, with how many replicas on how many devices."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from convoy import distributed
from convoy.devices import PER_REPLICA
from convoy.devices import VARIABLE as DEVICES
from convoy.launch.group import LOCAL, Task

LOOPBACK = "127.0.0.1"
# For several hosts, where a free one cannot be looked for beforehand.
PORT = 29411
# Variables of these libraries go along to other hosts.
_SENT_ALONG = ("CONVOY_", "JAX_", "KERAS_", "OMP_", "PYTHONPATH", "XLA_")


class LaunchError(ValueError):
    """A group that cannot be started as asked."""


@dataclass(frozen=True)
class Topology:
    """How a run is divided.

    Attributes:
        instances: distributed.
        replicas: copies of the model, over all distributed.
        devices_per_replica: more than one for models in stages.
        hosts: where processes run, in blocks of equal size.
        numa: whether a process stays on one node of memory.
        port: of the first process, for the others to find it; 0 for a free one.
        silence: seconds after which a process that says nothing is taken for hung.
    """

    instances: int
    replicas: int
    devices_per_replica: int = 1
    hosts: tuple[str, ...] = (LOCAL,)
    numa: bool = False
    port: int = 0
    silence: float = distributed.SILENCE_SECONDS

    def __post_init__(self) -> None:
        for name, value in (
            ("--num-instances", self.instances),
            ("--num-replicas", self.replicas),
            ("--devices-per-replica", self.devices_per_replica),
        ):
            if value < 1:
                raise LaunchError(f"{name} {value} is too few. Pass 1 or more.")
        if self.replicas % self.instances and not self._divides_replicas():
            near = max(1, round(self.replicas / self.instances)) * self.instances
            raise LaunchError(
                f"--num-replicas {self.replicas} does not divide over --num-instances "
                f"{self.instances}. Pass --num-replicas {near}, or fewer instances; or, for stages "
                "in several processes, instances that divide the devices of each replica."
            )
        if self.instances % len(self.hosts):
            raise LaunchError(
                f"--num-instances {self.instances} does not divide over {len(self.hosts)} hosts "
                f"({', '.join(self.hosts)}). Pass a multiple of {len(self.hosts)}."
            )

    @property
    def devices(self) -> int:
        """Devices of one process."""
        return self.replicas * self.devices_per_replica // self.instances

    def _divides_replicas(self) -> bool:
        """Say whether several processes can have parts of one replica: some stages each."""
        each, rest = divmod(self.instances, self.replicas)
        return not rest and self.devices_per_replica % each == 0

    def tasks(self, command: Sequence[str]) -> list[Task]:
        """Return what each process runs; a group of one needs no other."""
        each = self.instances // len(self.hosts)
        coordinator = self._coordinator()
        return [
            Task(
                index,
                host,
                command,
                self._environment(index, host, coordinator),
                {"number": index % each, "of": each, "numa": self.numa},
            )
            for index, host in enumerate(h for h in self.hosts for _ in range(each))
        ]

    def describe(self) -> str:
        """Say it in words, a line for each process."""
        lines = [
            f"{self.instances} processes, {self.replicas} replicas on {self.devices_per_replica} "
            f"devices each"
        ]
        each = self.instances // len(self.hosts)
        lines += [
            f"  process {index}: {self.hosts[index // each]}, {self._part(index)}"
            for index in range(self.instances)
        ]
        return "\n".join(lines)

    def _part(self, index: int) -> str:
        """Say what of the replicas a process has."""
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
        sent: dict[str, str] = {}
        if host != LOCAL:
            sent = {k: v for k, v in os.environ.items() if k.startswith(_SENT_ALONG)}
        sent[DEVICES] = str(self.devices)
        sent[PER_REPLICA] = str(self.devices_per_replica)
        if self.instances > 1:
            sent |= {
                distributed.COORDINATOR: coordinator,
                distributed.COUNT: str(self.instances),
                distributed.INDEX: str(index),
                distributed.SILENCE: str(self.silence),
                distributed.ADDRESS: LOOPBACK if self.hosts == (LOCAL,) else host,
            }
        return sent


def free_port() -> int:
    """Return a port of this host that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return listener.getsockname()[1]


def read_hosts(path: str) -> tuple[str, ...]:
    """Return the hosts that a file names, one in a line; what follows a name is left out.

    Raises:
        LaunchError: if it cannot be read, or names none.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise LaunchError(f"--hostfile {path} cannot be read: {error.strerror}.") from error
    hosts = tuple(words[0] for line in lines if (words := line.split("#")[0].split()))
    if not hosts:
        raise LaunchError(f"--hostfile {path} names no host. Write one in each line.")
    return hosts
