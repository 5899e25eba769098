"""Sums over replicas, of many arrays in few exchanges.

Replicas wait for each other in every exchange, however small, so arrays are joined into buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
from convoy import distributed
from convoy.engine.replica_axis import AXIS
from convoy.engine.state import Arrays

Reduction = Literal["mean", "sum"]
Reduce = Callable[[Arrays, Any], tuple[Arrays, Any]]

# With whom replicas swap, by how many there are.
_SWAPPING = {2: (1,), 4: (1, 2)}


def reducer(reduction: Reduction, reduction_bucket: int) -> Reduce:
    """Return what takes the mean or the sum of gradients over all replicas.

    It takes a tree of other arrays, too, and returns their sums: they travel with the gradients.

    Args:
        reduction: `"mean"` or `"sum"`.
        reduction_bucket: gradients of one type are joined until they reach this size, and reduced
            together. 0 reduces each by itself.
    """

    def reduce(gradients: Arrays, others: Any) -> tuple[Arrays, Any]:
        leaves, structure = jax.tree.flatten(others)
        sums = _sums([*gradients, *leaves], _buckets(gradients, leaves, reduction_bucket))
        reduced = sums[: len(gradients)]
        if reduction == "mean":
            reduced = [mean(*both) for both in zip(gradients, reduced, strict=True)]
        return reduced, jax.tree.unflatten(structure, sums[len(gradients) :])

    return reduce


def total(tree: Any) -> Any:
    """Add up each array of a tree over all replicas, in one exchange for each type of number."""
    return reducer("sum", 0)([], tree)[1]


def is_floating(value: jax.Array) -> bool:
    """Whether replicas take the mean of it: what is counted is the same on each."""
    return bool(jnp.issubdtype(value.dtype, jnp.floating))


def mean(value: jax.Array, summed: jax.Array | None) -> jax.Array:
    """Return the mean over replicas of a value by its sum, or itself where there is none."""
    return value if summed is None else summed / jax.lax.axis_size(AXIS)


def _sums(arrays: Arrays, buckets: Iterator[list[int]]) -> Arrays:
    sums = list(arrays)
    for bucket in buckets:
        joined = _sum(_join([arrays[position] for position in bucket]))
        parts = _part(joined, [arrays[position] for position in bucket])
        for position, part in zip(bucket, parts, strict=True):
            sums[position] = part
    return sums


def _sum(array: jax.Array) -> jax.Array:
    """Add up an array over all replicas.

    Between processes on CPUs, JAX sums by Gloo, which passes parts of the array around twice. A few
    replicas swap the whole of it with a neighbour instead, then with one two places on: for 300 KB
    and two processes that takes half the time. All end with the same bits: a + b is b + a.
    """
    replicas = jax.lax.axis_size(AXIS)
    if replicas not in _SWAPPING or distributed.count() == 1 or jax.default_backend() != "cpu":
        return jax.lax.psum(array, AXIS)
    for distance in _SWAPPING[replicas]:
        pairs = [(replica, replica ^ distance) for replica in range(replicas)]
        array = array + jax.lax.ppermute(array, AXIS, pairs)
    return array


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


def _buckets(gradients: Arrays, others: Arrays, limit: int) -> Iterator[list[int]]:
    """Yield the positions of arrays that are reduced together; the others go with the last."""
    arrays = [*gradients, *others]
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        bucket: list[int] = []
        filled = 0
        for position, array in enumerate(arrays):
            if array.dtype != dtype:
                continue
            is_gradient = position < len(gradients)
            if is_gradient and bucket and filled + array.nbytes > limit:
                yield bucket
                bucket, filled = [], 0
            bucket.append(position)
            filled += array.nbytes
        if bucket:
            yield bucket
