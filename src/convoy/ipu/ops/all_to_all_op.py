"""Exchanges in which every replica gets something from every other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from convoy import cross_replica
from convoy.ipu.ops.groups import AXIS, check_factor


def all_to_all(
    x: Any,
    split_dimension: int,
    concat_dimension: int,
    replication_factor: int,
    name: str | None = None,
) -> Any:
    """Cut an array into a part for each replica, and join the parts that come from each."""
    del name
    check_factor(replication_factor)
    if cross_replica.count() == 1:
        return x
    return jax.lax.all_to_all(x, AXIS, split_dimension, concat_dimension, tiled=True)


def all_gather(x: Any, replication_factor: int, name: str | None = None) -> Any:
    """Return the arrays of all replicas, along a new first axis."""
    del name
    check_factor(replication_factor)
    return cross_replica.gather(jnp.asarray(x)[None])
