"""The weight update: gradients through the model's own optimizer."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import keras
from convoy import keras_bridge
from convoy.engine.loss_scale import LossScale, all_finite, unscale
from convoy.engine.numerics import Settings, pack, split_key, unpack
from convoy.engine.rounding import is_half, round_stochastically
from convoy.engine.state import Arrays, State, like
from convoy.engine.step import GradientStep, Logs, Position, Step

Apply = Callable[[State, Arrays], State]


def update(
    step: GradientStep,
    optimizer: keras.optimizers.Optimizer,
    settings: Settings = Settings(),  # noqa: B008 - it is frozen
) -> Step:
    """Follow `step` by one update of the weights."""
    apply = _rounding(optimizer) if settings.rounds else _plain(optimizer)
    if settings.loss_scale is not None:
        apply = _unscaling(apply, settings.loss_scale)

    def updated(state: State, position: Position) -> tuple[State, Logs]:
        state, gradients, logs = step(state, position)
        return apply(state, gradients), logs

    return updated


def _plain(optimizer: keras.optimizers.Optimizer) -> Apply:
    def apply(state: State, gradients: Arrays) -> State:
        trainable, own = optimizer.stateless_apply(state.optimizer, gradients, state.trainable)
        return state._replace(trainable=trainable, optimizer=own)

    return apply


def _rounding(optimizer: keras.optimizers.Optimizer) -> Apply:
    """Compute in float32, and round what is kept in 16 bits stochastically.

    That is weights and optimizer state: a moving average loses small steps as a weight does.
    """

    def apply(state: State, gradients: Arrays) -> State:
        scaling, key = unpack(state.numerics)
        key, use = split_key(key)
        variables = keras_bridge.updated_variables(optimizer) + optimizer.variables
        half = [variable for variable in variables if variable.dtype in ("float16", "bfloat16")]
        with keras_bridge.held_in("float32", half):
            trainable, own = optimizer.stateless_apply(
                _widened(state.optimizer), _widened(gradients), _widened(state.trainable)
            )
        trainable = _narrowed(trainable, state.trainable, jax.random.fold_in(use, 0))
        own = _narrowed(own, state.optimizer, jax.random.fold_in(use, 1))
        return state._replace(trainable=trainable, optimizer=own, numerics=pack(scaling, key))

    return apply


def _unscaling(apply: Apply, loss_scale: LossScale) -> Apply:
    """Divide gradients by the factor of the loss; leave the update out if one of them overflowed.

    All replicas see the same gradients here, so all decide the same.
    """

    def apply_unscaled(state: State, gradients: Arrays) -> State:
        scaling, _ = unpack(state.numerics)
        finite = all_finite(gradients)
        state = jax.lax.cond(
            finite,
            lambda: like(apply(state, unscale(gradients, scaling.factor)), state),
            lambda: state,
        )
        _, key = unpack(state.numerics)
        return state._replace(numerics=pack(loss_scale.decide(scaling, finite), key))

    return apply_unscaled


def _widened(values: Arrays) -> Arrays:
    return [value.astype(jnp.float32) if is_half(value) else value for value in values]


def _narrowed(new: Arrays, old: Arrays, key: jax.Array) -> Arrays:
    return [
        round_stochastically(value, before.dtype, jax.random.fold_in(key, position))
        if is_half(before)
        else value
        for position, (value, before) in enumerate(zip(new, old, strict=True))
    ]
