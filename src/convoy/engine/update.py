"""The weight update: gradients through the model's own optimizer."""

from __future__ import annotations

import keras
from convoy.engine.state import State
from convoy.engine.step import Batch, GradientStep, Logs, Step


def update(step: GradientStep, optimizer: keras.optimizers.Optimizer) -> Step:
    """Follow `step` by one update of the weights."""

    def updated(state: State, batch: Batch) -> tuple[State, Logs]:
        state, gradients, logs = step(state, batch)
        trainable, optimizer_state = optimizer.stateless_apply(
            state.optimizer, gradients, state.trainable
        )
        return state._replace(trainable=trainable, optimizer=optimizer_state), logs

    return updated
