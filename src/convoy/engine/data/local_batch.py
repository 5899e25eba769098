"""Access to the micro-batches of a chunk, inside of a compiled program."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.placement import AXIS
from convoy.types import Batch, PyTree, Shapes

Fetch = Callable[..., Batch]
"""Takes the source of a chunk and the index of a micro-batch, and returns the local batch."""


def local_batch_shapes(chunk: Chunk, replicas: int) -> Shapes:
    """Return the shapes and types of the local batches of a chunk."""
    samples, is_block = chunk.micro_batch_samples // replicas, chunk.layout == "block"
    arrays = chunk.source if is_block else chunk.source[0]
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((samples, *leaf.shape[1 + is_block :]), leaf.dtype),
        arrays,
    )


def fetcher(chunk: Chunk, replicas: int, *, in_one_program: bool = True) -> Fetch:
    """Return the function that fetches a replica's local batch from the source of a chunk.

    Args:
        chunk: a chunk of the kind that it will be called with.
        replicas: replicas that divide a micro-batch.
        in_one_program: whether all replicas run one program, in which the mesh axis gives the index
            of the replica; otherwise the function takes the index as a third argument.
    """
    samples = chunk.micro_batch_samples // replicas

    def start(offset: jax.Array, index: jax.Array, replica: tuple[jax.Array, ...]) -> jax.Array:
        start = offset + index * chunk.micro_batch_samples
        if replicas == 1:
            return start
        return start + (jax.lax.axis_index(AXIS) if in_one_program else replica[0]) * samples

    def ordered(source: PyTree, index: jax.Array, *replica: jax.Array) -> Batch:
        arrays, order, offset = source
        indices = jax.lax.dynamic_slice_in_dim(order, start(offset, index, replica), samples)
        return jax.tree.map(lambda leaf: leaf.at[indices].get(mode="promise_in_bounds"), arrays)

    def contiguous(source: PyTree, index: jax.Array, *replica: jax.Array) -> Batch:
        arrays, _, offset = source
        first = start(offset, index, replica)
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, samples), arrays)

    def block(source: PyTree, index: jax.Array, *_: jax.Array) -> Batch:
        return jax.tree.map(
            lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), source
        )

    if chunk.layout == "block":
        return _in_a_branch(block)
    return ordered if chunk.layout == "ordered" else contiguous


def _in_a_branch(fetch: Fetch) -> Fetch:
    """Prevent XLA:CPU from fusing the access to the data with the computation that reads it.

    A fused computation would round differently than the same computation on resident data. XLA:CPU
    does not fuse across a conditional, which costs about a microsecond.
    """

    def branch(*arguments: PyTree) -> Batch:
        def zeros(*arguments: PyTree) -> Batch:
            return jax.tree.map(jnp.zeros_like, jax.eval_shape(fetch, *arguments))

        return jax.lax.cond(arguments[1] >= 0, fetch, zeros, *arguments)

    def fetch_in_branch(source: PyTree, index: jax.Array, *replica: jax.Array) -> Batch:
        arguments = source, jnp.asarray(index), *replica
        return jax.lax.platform_dependent(*arguments, cpu=branch, default=fetch)

    return fetch_in_branch
