"""All-to-all and all-gather over replicas."""

import jax
import jax.numpy as jnp
from convoy import cross_replica
from convoy.engine.data.placement import AXIS
from convoy.ipu.ops.collectives import check_replication_factor


def all_to_all(
    x: jax.Array,
    split_dimension: int,
    concat_dimension: int,
    replication_factor: int,
    name: str | None = None,
) -> jax.Array:
    """Split an array into a part for each replica, and join the parts received from each."""
    check_replication_factor(replication_factor)
    if cross_replica.count() == 1:
        return x
    return jax.lax.all_to_all(x, AXIS, split_dimension, concat_dimension, tiled=True)


def all_gather(x: jax.Array, replication_factor: int, name: str | None = None) -> jax.Array:
    """Return the arrays of all replicas, along a new first axis."""
    check_replication_factor(replication_factor)
    return cross_replica.gather(jnp.asarray(x)[None])
