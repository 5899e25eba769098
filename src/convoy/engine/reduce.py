"""Gradients over replicas: one reduction per weight update, in buckets."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from convoy.engine.plan import Reduction
from convoy.engine.replicate import AXIS, Reduce
from convoy.engine.state import Arrays


def reducer(reduction: Reduction, bucket_bytes: int) -> Reduce:
    """Return what takes the mean or the sum of gradients over all replicas.

    Args:
        reduction: `"mean"` or `"sum"`.
        bucket_bytes: gradients of one type are joined until they reach this size, and reduced
            together: fewer, larger exchanges. 0 reduces each by itself.
    """
    over_replicas = jax.lax.pmean if reduction == "mean" else jax.lax.psum

    def reduce(gradients: Arrays) -> Arrays:
        reduced = list(gradients)
        for bucket in _buckets(gradients, bucket_bytes):
            if len(bucket) == 1:
                (position,) = bucket
                reduced[position] = over_replicas(gradients[position], AXIS)
                continue
            flat = jnp.concatenate([gradients[position].ravel() for position in bucket])
            flat = over_replicas(flat, AXIS)
            start = 0
            for position in bucket:
                shape, size = gradients[position].shape, gradients[position].size
                reduced[position] = flat[start : start + size].reshape(shape)
                start += size
        return reduced

    return reduce


def _buckets(gradients: Arrays, limit: int) -> Iterator[list[int]]:
    """Yield the positions of gradients that are reduced together."""
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        bucket: list[int] = []
        filled = 0
        for position, gradient in enumerate(gradients):
            if gradient.dtype != dtype:
                continue
            if bucket and filled + gradient.nbytes > limit:
                yield bucket
                bucket, filled = [], 0
            bucket.append(position)
            filled += gradient.nbytes
        if bucket:
            yield bucket
