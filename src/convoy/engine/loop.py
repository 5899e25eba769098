"""Many steps in one device call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from convoy.engine.state import State
from convoy.engine.step import Batch, Forward, Logs, Step

Source = Any
Fetch = Callable[[Source, jax.Array], Batch]
Count = jax.Array


def loop(step: Step, fetch: Fetch) -> Callable[[State, Source, Count], tuple[State, Logs]]:
    """Repeat `step` on the device over the batches that `fetch` finds in a source.

    The number of steps is an argument of the compiled program, so a short tail of an epoch, or
    another `steps_per_execution`, runs in the same program.
    """

    def run(state: State, source: Source, count: Count) -> tuple[State, Logs]:
        def body(index: jax.Array, carry: tuple[State, Logs]) -> tuple[State, Logs]:
            state, _ = carry
            new_state, logs = step(state, fetch(source, index))
            return _like(new_state, state), logs

        _, logs = jax.eval_shape(lambda: step(state, fetch(source, jnp.int32(0))))
        return jax.lax.fori_loop(0, count, body, (state, _zeros(logs)))

    return run


def collect(
    step: Forward, fetch: Fetch, capacity: int
) -> Callable[[State, Source, Count], tuple[State, Any]]:
    """Repeat `step` on the device and keep what it returns, for at most `capacity` steps."""

    def run(state: State, source: Source, count: Count) -> tuple[State, Any]:
        def body(index: jax.Array, carry: tuple[State, Any]) -> tuple[State, Any]:
            state, kept = carry
            new_state, outputs = step(state, fetch(source, index))
            kept = jax.tree.map(
                lambda all_steps, one: jax.lax.dynamic_update_index_in_dim(
                    all_steps, one.astype(all_steps.dtype), index, axis=0
                ),
                kept,
                outputs,
            )
            return _like(new_state, state), kept

        _, outputs = jax.eval_shape(lambda: step(state, fetch(source, jnp.int32(0))))
        kept = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), outputs)
        return jax.lax.fori_loop(0, count, body, (state, kept))

    return run


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _like(new: State, old: State) -> State:
    # A loop's state keeps its types; a layer may have computed an update in a wider one.
    return jax.tree.map(lambda n, o: jnp.asarray(n, o.dtype), new, old)
