"""The weight update: applies gradients with the model's optimizer."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import keras
from convoy import keras_bridge
from convoy.engine.numerics.loss_scale import LossScaling, all_finite, unscale
from convoy.engine.numerics.numerics import Settings, pack, split_key, unpack
from convoy.engine.numerics.rounding import is_half, round_stochastically
from convoy.engine.state import State, like
from convoy.engine.step.step import GradientStep, Position, Step
from convoy.types import Arrays, Logs

Apply = Callable[[State, Arrays], State]


def update(step: GradientStep, optimizer: keras.optimizers.Optimizer, settings: Settings) -> Step:
    """Add a weight update to a step that computes gradients."""
    apply = _rounding(optimizer) if settings.rounds else _plain(optimizer)
    if settings.loss_scaling is not None:
        apply = _unscaling(apply, settings.loss_scaling)

    def updating_step(state: State, position: Position) -> tuple[State, Logs]:
        state, gradients, logs = step(state, position)
        return apply(state, gradients), logs

    return updating_step


def _plain(optimizer: keras.optimizers.Optimizer) -> Apply:
    def apply(state: State, gradients: Arrays) -> State:
        trainable, own = optimizer.stateless_apply(state.optimizer, gradients, state.trainable)
        return state._replace(trainable=trainable, optimizer=own)

    return apply


def _rounding(optimizer: keras.optimizers.Optimizer) -> Apply:
    def apply(state: State, gradients: Arrays) -> State:
        loss_scale_state, key = unpack(state.numerics)
        key, use = split_key(key)
        indices = range(len(state.trainable)), range(len(state.optimizer))
        trainable, own = apply_rounding(
            optimizer, state.optimizer, gradients, state.trainable, use, indices
        )
        return state._replace(
            trainable=trainable, optimizer=own, numerics=pack(loss_scale_state, key)
        )

    return apply


def apply_rounding(
    optimizer: keras.optimizers.Optimizer,
    own: Arrays,
    gradients: Arrays,
    trainable: Arrays,
    key: jax.Array,
    indices: tuple[Sequence[int], Sequence[int]],
) -> tuple[Arrays, Arrays]:
    """Update in float32, and stochastically round the variables that are stored in 16 bits.

    This includes the optimizer state, because moving averages lose small updates just as weights
    do.

    Args:
        optimizer: the optimizer of these weights.
        own: its state.
        gradients: the gradients of the weights.
        trainable: the weights.
        key: a random key.
        indices: the indices of the weights, and of the optimizer's variables, among those of the
            whole model, so that each draws its own random numbers.
    """
    variables = keras_bridge.updated_variables(optimizer) + optimizer.variables
    half = [variable for variable in variables if variable.dtype in ("float16", "bfloat16")]
    with keras_bridge.variables_held_as("float32", half):
        new, new_own = optimizer.stateless_apply(
            _widened(own), _widened(gradients), _widened(trainable)
        )
    new = _rounded(new, trainable, jax.random.fold_in(key, 0), indices[0])
    return new, _rounded(new_own, own, jax.random.fold_in(key, 1), indices[1])


def _unscaling(apply: Apply, loss_scaling: LossScaling) -> Apply:
    """Divide gradients by the loss scale, and skip the update if one of them has overflowed.

    All replicas have the same gradients here, so they make the same decision.
    """

    def apply_unscaled(state: State, gradients: Arrays) -> State:
        loss_scale_state, _ = unpack(state.numerics)
        finite = all_finite(gradients)
        state = jax.lax.cond(
            finite,
            lambda: like(apply(state, unscale(gradients, loss_scale_state.loss_scale)), state),
            lambda: state,
        )
        _, key = unpack(state.numerics)
        return state._replace(numerics=pack(loss_scaling.decide(loss_scale_state, finite), key))

    return apply_unscaled


def _widened(values: Arrays) -> Arrays:
    return [value.astype(jnp.float32) if is_half(value) else value for value in values]


def _rounded(new: Arrays, old: Arrays, key: jax.Array, indices: Sequence[int]) -> Arrays:
    """Round new values to the dtypes of the old ones, if these have 16 bits."""
    return [
        round_stochastically(value, before.dtype, jax.random.fold_in(key, index))
        if is_half(before)
        else value
        for index, value, before in zip(indices, new, old, strict=True)
    ]
