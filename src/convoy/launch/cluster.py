"""Detection of clusters, and the index and addresses of a process that a cluster has started.

Slurm and MPI set environment variables. Kubernetes gives every pod of an indexed job an index, and
a host name that ends with the index. A TPU virtual machine has a metadata server.
"""

import itertools
import os
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from convoy.distributed.process import CLUSTER, Place
from convoy.launch.topology import LOOPBACK, PORT, LaunchError
from convoy_command.parser import not_one_of

AUTO, NONE = "auto", "none"
# Jobs that share a node need different ports, so the port is derived from the job ID.
SLURM_PORTS = range(20000, 28192)
METADATA = "GCE_METADATA_HOST"
METADATA_SECONDS = 10


@dataclass(frozen=True)
class Cluster:
    """A kind of cluster.

    Attributes:
        title: its name in messages.
        variables: environment variables by which it is detected; if there are none, `--cluster`
            must name it.
        find_place: function that returns the place of this process in the run, given the number of
            processes (`None` if it was not passed) and the port (0 for the default).
    """

    title: str
    variables: tuple[str, ...]
    find_place: Callable[[int | None, int], Place]


def find_cluster(name: str) -> Cluster | None:
    """Return the cluster that has started this process, or `None`.

    Args:
        name: a key of `CLUSTERS`, `"none"`, or `"auto"` to recognise it by its variables.

    Raises:
        LaunchError: if there is no such cluster, or if it has not started this process.
    """
    if name == NONE:
        return None
    if name == AUTO:
        found = (one for one in CLUSTERS.values() if one.variables)
        return next((one for one in found if not _missing(one)), None)
    if name not in CLUSTERS:
        raise LaunchError(f"--cluster: {not_one_of(name, (AUTO, NONE, *CLUSTERS))}")
    if missing := _missing(CLUSTERS[name]):
        raise LaunchError(
            f"--cluster {name}: {', '.join(missing)} is not set, so {CLUSTERS[name].title} has not "
            "started this process. Submit a job; `convoy launch --write` writes one."
        )
    return CLUSTERS[name]


def _missing(cluster: Cluster) -> list[str]:
    return [variable for variable in cluster.variables if variable not in os.environ]


def expand_hosts(text: str) -> list[str]:
    """Return the host names of a Slurm list such as `node[01-03,7],gpu1`."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        pieces = re.split(r"\[([^\]]*)\]", part)
        choices = [
            list(_numbers(piece)) if position % 2 else [piece]
            for position, piece in enumerate(pieces)
        ]
        hosts += ["".join(chosen) for chosen in itertools.product(*choices)]
    return hosts


def _numbers(text: str) -> Iterator[str]:
    for span in text.split(","):
        first, _, last = span.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def _slurm_place(instances: int | None, port: int) -> Place:
    environment = os.environ
    count, index = _number("SLURM_STEP_NUM_TASKS"), _number("SLURM_PROCID")
    _check_count("Slurm", count, instances, "srun --ntasks")
    text = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    hosts = expand_hosts(text)
    if not hosts:
        raise LaunchError(
            "SLURM_STEP_NODELIST is not set, so the host of the first process is not known. Start "
            "the processes by srun."
        )
    if not port:
        port = SLURM_PORTS[int(environment.get("SLURM_JOB_ID", "0")) % len(SLURM_PORTS)]
    if len(set(hosts)) == 1:
        return Place(f"{LOOPBACK}:{port}", count, index, LOOPBACK)
    other = hosts[0] if index else hosts[-1]
    return Place(f"{hosts[0]}:{port}", count, index, _address_towards(other, port))


def _kubernetes_place(instances: int | None, port: int) -> Place:
    index = _number("JOB_COMPLETION_INDEX")
    if instances is None or index >= instances:
        passed = "missing" if instances is None else str(instances)
        raise LaunchError(
            f"--num-instances is {passed}, but this pod has JOB_COMPLETION_INDEX={index}. Pass the "
            "number of pods: the completions of the job."
        )
    own, first = socket.gethostname(), first_pod(socket.getfqdn(), index)
    return Place(f"{first}:{port or PORT}", instances, index, own)


def first_pod(name: str, index: int) -> str:
    """Return the host name of the first pod of an indexed job.

    Args:
        name: host name of this pod, with its domain: `train-worker-0-3.train.default.svc`.
        index: index of this pod.

    Raises:
        LaunchError: if the name does not end with the index.
    """
    host, dot, domain = name.partition(".")
    prefix = host.removesuffix(f"-{index}")
    if prefix == host:
        raise LaunchError(
            f"The host name {host} does not end with -{index}, the pod's JOB_COMPLETION_INDEX. Use "
            "an indexed job with a subdomain, such as a JobSet."
        )
    return f"{prefix}-0{dot}{domain}"


def _tpu_place(instances: int | None, port: int) -> Place:
    workers = [worker.split(":")[-1] for worker in _metadata("worker-network-endpoints").split(",")]
    index = int(_metadata("agent-worker-number"))
    _check_count("The TPU", len(workers), instances, "a TPU of another size")
    return Place(f"{workers[0]}:{port or PORT}", len(workers), index, workers[index])


def _metadata(key: str) -> str:
    """Return an attribute of this virtual machine from Google's metadata server."""
    server = os.environ.get(METADATA, "metadata.google.internal")
    url = f"http://{server}/computeMetadata/v1/instance/attributes/{key}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=METADATA_SECONDS) as answer:
            return answer.read().decode().strip()
    except (OSError, urllib.error.URLError) as error:
        raise LaunchError(
            f"--cluster tpu-vm: {server} did not answer for {key}: {error}. Run the command on a "
            "TPU virtual machine."
        ) from None


def _mpi_place(instances: int | None, port: int) -> Place:
    del port  # JAX finds the address of the first process
    count, index = _number("OMPI_COMM_WORLD_SIZE"), _number("OMPI_COMM_WORLD_RANK")
    _check_count("MPI", count, instances, "mpirun -n")
    return Place(CLUSTER, count, index)


CLUSTERS: Mapping[str, Cluster] = {
    "slurm": Cluster("Slurm", ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), _slurm_place),
    "mpi": Cluster("MPI", ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), _mpi_place),
    "kubernetes": Cluster(
        "Kubernetes", ("JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"), _kubernetes_place
    ),
    "tpu-vm": Cluster("a TPU virtual machine", (), _tpu_place),
}


def _number(variable: str) -> int:
    text = os.environ[variable]
    if not text.isdigit():
        raise LaunchError(f"{variable}={text!r} is not a number. Start the processes as a job.")
    return int(text)


def _check_count(title: str, count: int, instances: int | None, other: str) -> None:
    if instances not in (None, count):
        raise LaunchError(
            f"{title} has {count} processes, but --num-instances is {instances}. Pass "
            f"--num-instances {count}, or {other}."
        )


def _address_towards(host: str, port: int) -> str:
    """Return the address of this host in the network of another one.

    The host's own name may resolve to a loopback address here. No packet is sent.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LaunchError(
            f"The host {host} cannot be reached: {error}. Check its name and the network."
        ) from None
