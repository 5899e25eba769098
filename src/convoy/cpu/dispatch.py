"""Asynchronous dispatch of programs that consist of native kernels.

XLA runs a program in the thread that calls it if it counts fewer than a thousand floating-point
operations in it. It counts none for a native kernel. So a program of nothing but kernels would
block Python, which could not dispatch work to the other devices in the meantime.
"""

import jax
import jax.numpy as jnp

SIDE = 16


def dummy_work(arguments: object) -> jax.Array:
    """Return a number that takes some thousand operations to compute, in a microsecond.

    Args:
        arguments: pytree of the program's arguments. The number depends on one of them, so that XLA
            does not compute it at compile time; and it must be one of the program's results.
    """
    # 16 x 16 x 16 multiplications and additions are well above XLA's limit of a thousand.
    value = next(leaf for leaf in jax.tree.leaves(arguments) if leaf.size)
    square = jnp.full((SIDE, SIDE), value.ravel()[0].astype(jnp.float32))
    return (square @ square)[0, 0]
