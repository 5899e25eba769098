"""Identity of this process in a run of several processes, from environment variables."""

import os
import socket
from dataclasses import dataclass

COORDINATOR = "CONVOY_COORDINATOR"
COUNT = "CONVOY_PROCESSES"
INDEX = "CONVOY_PROCESS"
ADDRESS = "CONVOY_ADDRESS"
HEARTBEAT = "CONVOY_HEARTBEAT"
"""Variable with the file descriptor that heartbeats are written to."""
LAST_HEARTBEAT = "!"
"""Heartbeat of a process that is about to end."""
SILENCE = "CONVOY_HEARTBEAT_TIMEOUT"
"""Variable with the number of seconds without a heartbeat after which a process counts as hung."""
CLUSTER = "cluster"
"""Value of `COORDINATOR` that leaves detection to JAX: Slurm, Kubernetes or MPI."""
SILENCE_SECONDS = 60


@dataclass(frozen=True)
class Place:
    """Index of this process among all processes of a run, and their addresses.

    Attributes:
        coordinator: address and port of the first process, or `"cluster"`.
        count: number of processes.
        index: index of this process.
        address: address at which the others reach this process; by default the host's name.
    """

    coordinator: str
    count: int
    index: int
    address: str | None = None


_place = Place("", 1, 0)


def set_place(place: Place) -> None:
    """Set the place of this process, once it has joined the others."""
    global _place
    _place = place


def count() -> int:
    """Return the number of processes of this run."""
    return _place.count


def index() -> int:
    """Return the index of this process."""
    return _place.index


def is_first() -> bool:
    """Return whether this is the process that writes files and shows progress."""
    return _place.index == 0


def address() -> str:
    """Return the name or address at which other processes reach this host."""
    return _place.address or socket.gethostname()


def requested() -> Place | None:
    """Return the place of this process according to the environment, or `None`.

    Raises:
        ValueError: if the variables contradict each other.
    """
    coordinator = os.environ.get(COORDINATOR)
    if not coordinator:
        return None
    if coordinator == CLUSTER:
        return Place(CLUSTER, 0, 0)
    numbers = {name: os.environ.get(name, "") for name in (COUNT, INDEX)}
    for name, text in numbers.items():
        if not text.isdigit():
            raise ValueError(
                f"{COORDINATOR} is set, but {name}={text!r} is not a number. Start the processes "
                "by `convoy launch`, or set all of its variables."
            )
    total, own = int(numbers[COUNT]), int(numbers[INDEX])
    if own >= total:
        raise ValueError(
            f"{INDEX}={own} does not exist in {COUNT}={total} processes. Set 0 to {total - 1}."
        )
    return Place(coordinator, total, own, os.environ.get(ADDRESS))
