"""Groups of replicas that exchange something among themselves."""

from __future__ import annotations

from convoy import cross_replica

AXIS = "replica"
"""The name of the axis over which Convoy's engine runs replicas."""


def groups(size: int | None) -> list[list[int]]:
    """Return the replicas of each group of neighbours.

    Raises:
        ValueError: if the size does not divide the number of replicas.
    """
    count = cross_replica.count()
    size = size or count
    if size < 1 or count % size:
        raise ValueError(
            f"Groups of {size} do not divide {count} replicas. Pass a number that does."
        )
    return [list(range(first, first + size)) for first in range(0, count, size)]


def check_factor(replication_factor: int) -> None:
    """Refuse a number of replicas that is not that of the program."""
    if replication_factor != cross_replica.count():
        raise ValueError(
            f"replication_factor={replication_factor}, but the program runs on "
            f"{cross_replica.count()} replicas. Pass that."
        )
