"""Gradient accumulation: one weight update from several micro-batches."""

import jax
import jax.numpy as jnp
from convoy.engine.data.placement import tree_zeros
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import State, like
from convoy.engine.step.global_batch import Denominators, mean_over_update, use_denominators
from convoy.engine.step.step import DenominatorStep, GradientStep, Position
from convoy.types import Arrays, Logs


def accumulate(
    step: GradientStep, config: ExecutionConfig, denominators_of: DenominatorStep
) -> GradientStep:
    """Repeat `step` over the micro-batches of a weight update and add up their gradients.

    Statistics, random states and metrics carry over from micro-batch to micro-batch. Only the sum
    of the gradients is kept, so memory does not grow with `gradient_accumulation`.

    Args:
        step: function that computes the gradients of a micro-batch.
        config: the number of micro-batches, and the reduction and type of the sum.
        denominators_of: function that computes the contribution of a micro-batch to the loss's
            denominators.
    """
    gradient_accumulation = config.gradient_accumulation
    if gradient_accumulation == 1:
        return step

    def accumulating_step(state: State, position: Position) -> tuple[State, Arrays, Logs]:
        source, index = position

        def at(number: jax.Array | int) -> Position:
            return source, index * gradient_accumulation + number

        def body(
            number: jax.Array, carry: tuple[State, Arrays, Logs]
        ) -> tuple[State, Arrays, Logs]:
            state, total, _ = carry
            new, gradients, logs = step(state, at(number))
            return like(new, state), jax.tree.map(add, total, gradients), logs

        # Scaled before it is added, because a sum of 16-bit numbers can overflow where the mean
        # does not.
        scale = 1 / gradient_accumulation if config.accumulation_reduction == "mean" else 1

        def add(total: jax.Array, gradient: jax.Array) -> jax.Array:
            return total + gradient.astype(total.dtype) * scale

        denominators = Denominators()
        with use_denominators(denominators):
            _, gradients, logs = jax.eval_shape(lambda: step(state, at(0)))
        if denominators.are_used:
            denominators.means = mean_over_update(
                lambda number: denominators_of(state, at(number)), gradient_accumulation
            )
        zeros = [jnp.zeros(g.shape, config.accumulation_dtype or g.dtype) for g in gradients]
        no_logs = tree_zeros(logs)
        with use_denominators(denominators):
            return jax.lax.fori_loop(0, gradient_accumulation, body, (state, zeros, no_logs))

    return accumulating_step
