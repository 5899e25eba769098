"""Reduce-scatter over replicas."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from convoy import cross_replica
from convoy.ipu.ops.collectives import check_replication_factor
from convoy.ipu.ops.replication_ops import replication_index

_REDUCTIONS: dict[str, Callable[..., jax.Array]] = {
    "ADD": jnp.sum,
    "MUL": jnp.prod,
    "MIN": jnp.min,
    "MAX": jnp.max,
    "LOGICAL_AND": jnp.all,
    "LOGICAL_OR": jnp.any,
    "SQUARE_ADD": lambda parts, axis: jnp.sum(parts**2, axis),
    "MEAN": jnp.mean,
}


def reduce_scatter(
    x: jax.Array, replication_factor: int, op: str = "COLLECTIVE_OP_ADD", name: str | None = None
) -> jax.Array:
    """Reduce an array of one axis over replicas; each keeps its shard, padded with zeros.

    Raises:
        ValueError: if the array has several axes, or the operation is unknown.
    """
    check_replication_factor(replication_factor)
    x = jnp.asarray(x)
    if x.ndim != 1:
        raise ValueError(f"reduce_scatter() received the shape {x.shape}. Pass one axis.")
    word = op.removeprefix("COLLECTIVE_OP_")
    if word not in _REDUCTIONS and word != "LOCAL":
        raise ValueError(f"op={op!r} is unknown. Pass one of {', '.join(_REDUCTIONS)}, LOCAL.")
    replicas = cross_replica.count()
    size = -(-x.size // replicas)
    reduced = jnp.pad(x, (0, size * replicas - x.size))
    if word != "LOCAL":
        reduced = _REDUCTIONS[word](cross_replica.gather(reduced[None]), axis=0)
    return jax.lax.dynamic_slice_in_dim(reduced, replication_index() * size, size)
