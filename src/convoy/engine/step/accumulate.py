"""One weight update from several micro-batches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from convoy.engine.execution_config import Accumulation
from convoy.engine.state import Arrays, State, like
from convoy.engine.step.loss_denominators import Answers, answered_by, mean_over_update
from convoy.engine.step.step import GradientStep, Logs, Parts, Position


def accumulate(step: GradientStep, accumulation: Accumulation, parts: Parts) -> GradientStep:
    """Repeat `step` over the micro-batches of a weight update and add up their gradients.

    Statistics, random states and metrics go on from micro-batch to micro-batch. Only the sum is
    kept, so the memory does not grow with the count.

    Args:
        step: computes the gradients of a micro-batch.
        accumulation: how many there are, and how they are added up.
        parts: finds what a micro-batch has of the sums that the loss divides by.
    """
    count = accumulation.count
    if count == 1:
        return step

    def accumulated(state: State, position: Position) -> tuple[State, Arrays, Logs]:
        source, index = position

        def at(number: Any) -> Position:
            return source, index * count + number

        def body(number: jax.Array, carry: tuple[State, Arrays, Logs]) -> Any:
            state, total, _ = carry
            new, gradients, logs = step(state, at(number))
            return like(new, state), jax.tree.map(add, total, gradients), logs

        # Scaled before it is added: a sum of halves overflows where their mean does not.
        scale = 1 / count if accumulation.reduction == "mean" else 1

        def add(total: jax.Array, gradient: jax.Array) -> jax.Array:
            return total + gradient.astype(total.dtype) * scale

        answers = Answers()
        with answered_by(answers):
            _, gradients, logs = jax.eval_shape(lambda: step(state, at(0)))
        if answers.asked:
            answers.means = mean_over_update(lambda number: parts(state, at(number)), count)
        nothing = [jnp.zeros(g.shape, accumulation.dtype or g.dtype) for g in gradients]
        empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), logs)
        with answered_by(answers):
            return jax.lax.fori_loop(0, count, body, (state, nothing, empty))

    return accumulated
