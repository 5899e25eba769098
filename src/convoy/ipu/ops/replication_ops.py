"""The index of the current replica."""

import jax
import jax.numpy as jnp
from convoy import cross_replica
from convoy.engine.data.placement import AXIS


def replication_index(name: str | None = None) -> jax.Array:
    """Return the index of the replica that runs the program."""
    return jax.lax.axis_index(AXIS) if cross_replica.count() > 1 else jnp.int32(0)
