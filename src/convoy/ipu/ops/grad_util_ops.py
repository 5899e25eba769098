"""Capture of the gradients of tensors in the backward pass."""

import jax
from convoy.engine.step.gradients import captured
from convoy.types import PyTree


def capture_upstream_gradients(args: PyTree, tag: str = "") -> PyTree:
    """Return tensors unchanged, and capture their gradients in the backward pass.

    Args:
        args: a tensor, or a list or dict of tensors.
        tag: key of the captured gradient; for several tensors, followed by a number.
    """
    leaves, structure = jax.tree.flatten(args)
    tags = [tag] if len(leaves) == 1 else [f"{tag}_{number}" for number in range(len(leaves))]
    return jax.tree.unflatten(structure, map(captured, leaves, tags))
