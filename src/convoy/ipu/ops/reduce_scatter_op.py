"""Reductions of which every replica keeps its share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from convoy import cross_replica
from convoy.ipu.ops.groups import check_factor
from convoy.ipu.ops.replication_ops import replication_index

_OPERATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "ADD": lambda parts: jnp.sum(parts, axis=0),
    "MUL": lambda parts: jnp.prod(parts, axis=0),
    "MIN": lambda parts: jnp.min(parts, axis=0),
    "MAX": lambda parts: jnp.max(parts, axis=0),
    "LOGICAL_AND": lambda parts: jnp.all(parts, axis=0),
    "LOGICAL_OR": lambda parts: jnp.any(parts, axis=0),
    "SQUARE_ADD": lambda parts: jnp.sum(parts**2, axis=0),
    "MEAN": lambda parts: jnp.mean(parts, axis=0),
}


def reduce_scatter(
    x: Any, replication_factor: int, op: str = "COLLECTIVE_OP_ADD", name: str | None = None
) -> Any:
    """Reduce an array of one axis over replicas; each keeps its share, padded with zeros.

    Raises:
        ValueError: if the array has several axes, or the operation is unknown.
    """
    del name
    check_factor(replication_factor)
    x = jnp.asarray(x)
    if x.ndim != 1:
        raise ValueError(f"reduce_scatter() takes an array of one axis, but received {x.shape}.")
    word = op.removeprefix("COLLECTIVE_OP_")
    if word not in _OPERATIONS and word != "LOCAL":
        raise ValueError(f"op={op!r} is unknown. Pass one of {', '.join(_OPERATIONS)}, LOCAL.")
    replicas = cross_replica.count()
    share = -(-x.size // replicas)
    padded = jnp.pad(x, (0, share * replicas - x.size))
    whole = padded if word == "LOCAL" else _OPERATIONS[word](cross_replica.gather(padded[None]))
    return jax.lax.dynamic_slice_in_dim(whole, replication_index() * share, share)
