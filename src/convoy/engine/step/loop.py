"""Many steps in one device call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from convoy.engine.state import State, like
from convoy.engine.step.step import Forward, Logs, Source, Step

Count = jax.Array


def loop(step: Step) -> Callable[[State, Source, Count], tuple[State, Logs]]:
    """Repeat `step` on the device over the first `count` positions of a source.

    The number of steps is an argument of the compiled program, so a short tail of an epoch, or
    another `steps_per_execution`, runs in the same program.
    """

    def run(state: State, source: Source, count: Count) -> tuple[State, Logs]:
        def body(index: jax.Array, carry: tuple[State, Logs]) -> tuple[State, Logs]:
            state, _ = carry
            new_state, logs = step(state, (source, index))
            return like(new_state, state), logs

        _, logs = jax.eval_shape(lambda: step(state, (source, jnp.int32(0))))
        return jax.lax.fori_loop(0, count, body, (state, _zeros(logs)))

    return run


def collect(step: Forward, capacity: int) -> Callable[[State, Source, Count], tuple[State, Any]]:
    """Repeat `step` on the device and keep what it returns, for at most `capacity` steps."""

    def run(state: State, source: Source, count: Count) -> tuple[State, Any]:
        def body(index: jax.Array, carry: tuple[State, Any]) -> tuple[State, Any]:
            state, kept = carry
            new_state, outputs = step(state, (source, index))
            kept = jax.tree.map(
                lambda all_steps, one: jax.lax.dynamic_update_index_in_dim(
                    all_steps, one.astype(all_steps.dtype), index, axis=0
                ),
                kept,
                outputs,
            )
            return like(new_state, state), kept

        _, outputs = jax.eval_shape(lambda: step(state, (source, jnp.int32(0))))
        kept = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), outputs)
        return jax.lax.fori_loop(0, count, body, (state, kept))

    return run


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
