"""What the tensors between stages look like, for a process that does not compute them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import keras
from convoy.engine.data.chunks import Chunk, local_batch_shapes
from convoy.pipeline.runner.layout import Layout
from convoy.pipeline.runner.stage_function import Body, Rest

Shapes = dict[int, jax.ShapeDtypeStruct]
LOSS = jax.ShapeDtypeStruct((), jnp.float32)


def shapes_between(
    layout: Layout,
    bodies: Sequence[Body],
    chunk: Chunk,
    replicas: int,
    traced: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> tuple[Shapes, Any]:
    """Trace stages one after the other, without compiling any.

    Args:
        layout: where stages are.
        bodies: what the first stages compute.
        chunk: of the data that they read.
        replicas: how many divide a micro-batch.
        traced: traces a function with other operations than Keras's own.

    Returns:
        The shapes and types of all tensors between these stages, and of what the last of them
        returns.
    """
    found: Shapes = {}
    outputs: Any = ()
    for number, body in enumerate(bodies):
        stage = body.stage
        data = _micro_batch(chunk, replicas) if layout.reads[number] else ()
        rest = Rest(_of(stage.non_trainable), data, [], LOSS)  # type: ignore[arg-type]
        received = tuple(found[tensor] for tensor in layout.received[number])
        compute = traced(body.compute)
        (outputs, _), _ = jax.eval_shape(compute, _of(stage.trainable), received, rest)
        if number != layout.last:
            found |= zip(stage.outputs, outputs, strict=True)
    return found, outputs


def _of(variables: Sequence[keras.Variable]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(v.shape, jnp.dtype(v.dtype)) for v in variables]


def _micro_batch(chunk: Chunk, replicas: int) -> Any:
    """Return the shapes of a replica's share of a micro-batch, which may be in other processes."""
    is_block = chunk.layout == "block"
    placed = chunk.source if is_block else chunk.source[0]
    source = placed.shapes if is_block else (placed.shapes,)
    return local_batch_shapes(replace(chunk, source=source), replicas)
