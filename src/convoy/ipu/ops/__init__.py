"""Graphcore's operations."""

from convoy.ipu.ops import (
    all_to_all_op,
    cross_replica_ops,
    grad_util_ops,
    pipelining_ops,
    rand_ops,
    reduce_scatter_op,
    replication_ops,
)

__all__ = [
    "all_to_all_op",
    "cross_replica_ops",
    "grad_util_ops",
    "pipelining_ops",
    "rand_ops",
    "reduce_scatter_op",
    "replication_ops",
]
