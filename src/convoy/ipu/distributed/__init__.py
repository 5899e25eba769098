"""Several processes, as `convoy launch` or `poprun` starts them."""

from convoy.ipu.distributed import popdist_strategy
from convoy.ipu.distributed.host_collectives import allgather, allreduce, broadcast

__all__ = ["allgather", "allreduce", "broadcast", "popdist_strategy"]
