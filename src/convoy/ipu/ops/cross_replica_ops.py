"""Sums and means over replicas, for layers, losses and programs."""

import jax
from convoy import cross_replica
from convoy.engine.data.placement import AXIS
from convoy.ipu.ops.collectives import on_symbolic_tensors, replica_groups
from convoy.types import PyTree


@on_symbolic_tensors
def cross_replica_sum(
    x: PyTree, replica_group_size: int | None = None, name: str | None = None
) -> PyTree:
    """Return the sum of an array over all replicas, or over groups of neighbours."""
    groups = replica_groups(replica_group_size)
    if len(groups) == 1:
        return cross_replica.sum(x)
    return jax.lax.psum(x, AXIS, axis_index_groups=groups)


@on_symbolic_tensors
def cross_replica_mean(
    x: PyTree, replica_group_size: int | None = None, name: str | None = None
) -> PyTree:
    """Return the mean of an array over all replicas, or over groups of neighbours."""
    size = replica_group_size or cross_replica.count()
    total = cross_replica_sum(x, replica_group_size, name)
    return jax.tree.map(lambda leaf: leaf / size, total)


def assume_equal_across_replicas(tensors: PyTree, inplace: bool = False) -> PyTree:
    """Return the tensors unchanged: nothing here depends on the assumption."""
    return tensors
