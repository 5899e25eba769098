"""The weight update: gradients through the model's own optimizer."""

from __future__ import annotations

import keras
from convoy.engine.state import State
from convoy.engine.step import GradientStep, Logs, Position, Step


def update(step: GradientStep, optimizer: keras.optimizers.Optimizer) -> Step:
    """Follow `step` by one update of the weights."""

    def updated(state: State, position: Position) -> tuple[State, Logs]:
        state, gradients, logs = step(state, position)
        trainable, optimizer_state = optimizer.stateless_apply(
            state.optimizer, gradients, state.trainable
        )
        return state._replace(trainable=trainable, optimizer=optimizer_state), logs

    return updated
