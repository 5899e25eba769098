"""The weight update: gradients through the model's own optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import keras
from convoy import keras_bridge
from convoy.engine.numerics.loss_scale import LossScale, all_finite, unscale
from convoy.engine.numerics.numerics import Settings, pack, split_key, unpack
from convoy.engine.numerics.rounding import is_half, round_stochastically
from convoy.engine.state import Arrays, State, like
from convoy.engine.step.step import GradientStep, Logs, Position, Step

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
    def apply(state: State, gradients: Arrays) -> State:
        scaling, key = unpack(state.numerics)
        key, use = split_key(key)
        places = range(len(state.trainable)), range(len(state.optimizer))
        trainable, own = apply_rounding(
            optimizer, state.optimizer, gradients, state.trainable, use, places
        )
        return state._replace(trainable=trainable, optimizer=own, numerics=pack(scaling, key))

    return apply


def apply_rounding(
    optimizer: keras.optimizers.Optimizer,
    own: Arrays,
    gradients: Arrays,
    trainable: Arrays,
    key: jax.Array,
    places: tuple[Sequence[int], Sequence[int]],
) -> tuple[Arrays, Arrays]:
    """Compute in float32, and round what is kept in 16 bits stochastically.

    That is weights and optimizer state: a moving average loses small steps as a weight does.

    Args:
        optimizer: of these weights.
        own: its state.
        gradients: of the weights.
        trainable: the weights.
        key: what to draw from.
        places: of the weights, and of the optimizer's variables, among those of the whole model:
            each draws numbers of its own.
    """
    variables = keras_bridge.updated_variables(optimizer) + optimizer.variables
    half = [variable for variable in variables if variable.dtype in ("float16", "bfloat16")]
    with keras_bridge.held_in("float32", half):
        new, new_own = optimizer.stateless_apply(
            _widened(own), _widened(gradients), _widened(trainable)
        )
    new = _narrowed(new, trainable, jax.random.fold_in(key, 0), places[0])
    return new, _narrowed(new_own, own, jax.random.fold_in(key, 1), places[1])


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


def _narrowed(new: Arrays, old: Arrays, key: jax.Array, places: Sequence[int]) -> Arrays:
    return [
        round_stochastically(value, before.dtype, jax.random.fold_in(key, place))
        if is_half(before)
        else value
        for place, value, before in zip(places, new, old, strict=True)
    ]
