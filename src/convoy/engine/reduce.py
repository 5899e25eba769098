"""Sums over replicas, of many arrays in few exchanges.

Replicas wait for each other in every exchange, however small, so arrays are joined into buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
from convoy.engine.state import Arrays

Reduction = Literal["mean", "sum"]
Reduce = Callable[[Arrays], Arrays]

AXIS = "replica"


def reducer(reduction: Reduction, bucket_bytes: int) -> Reduce:
    """Return what takes the mean or the sum of gradients over all replicas.

    Args:
        reduction: `"mean"` or `"sum"`.
        bucket_bytes: gradients of one type are joined until they reach this size, and reduced
            together. 0 reduces each by itself.
    """
    over_replicas = jax.lax.pmean if reduction == "mean" else jax.lax.psum

    def reduce(gradients: Arrays) -> Arrays:
        reduced = list(gradients)
        for bucket in _buckets(gradients, bucket_bytes):
            joined = _join([gradients[position] for position in bucket])
            parts = _part(over_replicas(joined, AXIS), [gradients[at] for at in bucket])
            for position, part in zip(bucket, parts, strict=True):
                reduced[position] = part
        return reduced

    return reduce


def total(tree: Any) -> Any:
    """Add up each array of a tree over all replicas, in one exchange for each type of number."""
    leaves, structure = jax.tree.flatten(tree)
    everything = sum(leaf.nbytes for leaf in leaves)
    return jax.tree.unflatten(structure, reducer("sum", everything)(leaves))


def _join(arrays: Arrays) -> jax.Array:
    if len(arrays) == 1:
        return arrays[0]
    return jnp.concatenate([array.ravel() for array in arrays])


def _part(joined: jax.Array, like: Arrays) -> Iterator[jax.Array]:
    """Take apart what `_join` has joined."""
    if len(like) == 1:
        yield joined
        return
    start = 0
    for array in like:
        yield joined[start : start + array.size].reshape(array.shape)
        start += array.size


def _buckets(arrays: Arrays, limit: int) -> Iterator[list[int]]:
    """Yield the positions of arrays that are reduced together."""
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        bucket: list[int] = []
        filled = 0
        for position, array in enumerate(arrays):
            if array.dtype != dtype:
                continue
            if bucket and filled + array.nbytes > limit:
                yield bucket
                bucket, filled = [], 0
            bucket.append(position)
            filled += array.nbytes
        if bucket:
            yield bucket
