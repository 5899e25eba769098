"""A program that a device runs while Python goes on.

XLA runs a program in the thread that calls it if it counts fewer than a thousand operations of
floating point in it. It counts none for a native kernel. So a program of nothing but kernels would
keep Python from giving the other devices something to do.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

SIDE = 16


def some_work(arguments: Any) -> jax.Array:
    """Return a number that takes some thousand operations, in a microsecond.

    Args:
        arguments: of the program. The number depends on one of them, so that XLA does not compute
            it when it compiles; and it has to be one of the program's results.
    """
    value = next(leaf for leaf in jax.tree.leaves(arguments) if leaf.size)
    square = jnp.full((SIDE, SIDE), value.ravel()[0].astype(jnp.float32))
    return (square @ square)[0, 0]
