"""A job: a program with the processes, devices and restarts of its launch."""

import re
from dataclasses import dataclass
from pathlib import PurePath

from convoy.distributed.process import SILENCE_SECONDS
from convoy.launch.topology import Topology

# The time between the signal that ends a job and its end, for the checkpoint.
GRACE_SECONDS = 300
# The time that other processes have to end after the first one has ended.
WAIT_SECONDS = 60
# Maximum length of names of Kubernetes objects: they are the prefix of a pod's host name, which has
# at most 63 characters.
MAX_NAME = 40


@dataclass(frozen=True)
class Accelerators:
    """TPUs or GPUs of a job.

    Attributes:
        platform: `"tpu"` or `"gpu"`.
        kind: the kind of device, such as `"v5e"`.
        shape: numbers of chips along the axes of a TPU topology, or hosts and GPUs of each host.
        hosts: number of hosts.
        per_host: devices of a host.
    """

    platform: str
    kind: str
    shape: tuple[int, ...]
    hosts: int
    per_host: int

    @property
    def devices(self) -> int:
        return self.hosts * self.per_host


@dataclass(frozen=True)
class Job:
    """A program that a cluster runs.

    Attributes:
        program: Python script or other program, and its arguments.
        topology: processes and devices.
        hosts: number of hosts.
        host_names: the hosts, if they were named.
        max_restarts: number of times that all processes are restarted after a failure.
        plain_script: whether the script does not use Convoy and runs inside a strategy's scope.
        accelerators: the devices; without them, processes compute on CPUs.
    """

    program: tuple[str, ...]
    topology: Topology
    hosts: int
    host_names: tuple[str, ...] = ()
    max_restarts: int = 0
    plain_script: bool = False
    accelerators: Accelerators | None = None

    @property
    def script(self) -> str:
        """The program itself: a script, if there is one."""
        return next((word for word in self.program if word.endswith(".py")), self.program[0])

    @property
    def name(self) -> str:
        """A name that clusters accept: lower-case letters, digits and hyphens."""
        words = re.findall("[a-z0-9]+", PurePath(self.script).stem.lower())
        name = "-".join(words)[:MAX_NAME].strip("-")
        return name if name[:1].isalpha() else f"job-{name}".strip("-")

    def command(self, cluster: str) -> list[str]:
        """Return the command of each process."""
        topology = self.topology
        replicas = "--replicas" if self.plain_script else "--num-replicas"
        words = ["convoy", "launch", "--cluster", cluster]
        words += ["--num-instances", str(topology.instances), replicas, str(topology.replicas)]
        if topology.devices_per_replica > 1:
            words += ["--devices-per-replica", str(topology.devices_per_replica)]
        if topology.port:
            words += ["--port", str(topology.port)]
        if topology.heartbeat_timeout != SILENCE_SECONDS:
            words += ["--heartbeat-timeout", f"{topology.heartbeat_timeout:g}"]
        return [*words, *self.program]


def as_comment(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())
