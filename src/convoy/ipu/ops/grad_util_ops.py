"""Gradients of tensors, captured on their way back."""

from __future__ import annotations

from typing import Any

import jax
from convoy.engine.step.gradients import captured


def capture_upstream_gradients(args: Any, tag: str = "") -> Any:
    """Return what was passed, and capture the gradient that comes back to it.

    Args:
        args: a tensor, or a list or dict of them.
        tag: under which the gradient is captured; of several tensors, with a number behind it.
    """
    leaves, structure = jax.tree.flatten(args)
    names = [tag] if len(leaves) == 1 else [f"{tag}_{number}" for number in range(len(leaves))]
    return jax.tree.unflatten(
        structure, [captured(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
    )
