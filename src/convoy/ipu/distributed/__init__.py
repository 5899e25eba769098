"""Runs of several processes, started by `convoy launch` or `poprun`."""

from convoy.ipu.distributed import popdist_strategy
from convoy.ipu.distributed.host_collectives import allgather, allreduce, broadcast

__all__ = ["allgather", "allreduce", "broadcast", "popdist_strategy"]
