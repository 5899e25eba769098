"""One micro-batch: forward, loss, gradients, metrics, as a pure function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
from convoy import keras_bridge
from convoy.engine.numerics.loss_scale import scale_loss
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.state import Arrays, State
from convoy.engine.step.gradients import map_gradients, value_and_gradients
from convoy.engine.step.loss_denominators import asking
from convoy.engine.step.metrics import metrics_update

Batch = Any
Source = Any
Position = tuple[Source, jax.Array]
"""Where data is, and the number of a micro-batch in it."""
Fetch = Callable[[Source, jax.Array], Batch]
Logs = dict[str, Any]
GradientStep = Callable[[State, Position], tuple[State, Arrays, Logs]]
Step = Callable[[State, Position], tuple[State, Logs]]
Forward = Callable[[State, Position], tuple[State, Any]]
Parts = Callable[[State, Position], Arrays]


def gradient_step(model: keras.Model, fetch: Fetch) -> GradientStep:
    """Return the training step of a model without its weight update.

    It runs on the micro-batch that `fetch` finds at a position. The state that it returns has new
    statistics, random states and metrics. Logs are what an overridden `compute_metrics` returned,
    else empty: see `results`.
    """
    compute = _asking(keras_bridge.loss_and_updates(model))
    update_metrics = metrics_update(model)
    numbers = PreparedModel.of(model).numerics

    def step(state: State, position: Position) -> tuple[State, Arrays, Logs]:
        x, y, weight = keras_bridge.unpack(fetch(*position))
        scaled = scale_loss(compute, numbers.factor(state.numerics))
        (_, (loss, y_pred, non_trainable, metrics)), gradients, caught = value_and_gradients(
            scaled,
            state.trainable,
            state.non_trainable,
            state.metrics,
            x,
            y,
            weight,
            training=True,
            optimizer_variables=state.optimizer,
        )
        logs, metrics = update_metrics(metrics, loss, x, y, y_pred, weight)
        state = state._replace(
            non_trainable=non_trainable,
            metrics=metrics,
            numerics=numbers.count(state.numerics, gradients, list(caught.values())),
        )
        return state, map_gradients(model, state.trainable, gradients), _own_logs(model, logs)

    return step


def denominator_parts(model: keras.Model, fetch: Fetch) -> Parts:
    """Return what finds a micro-batch's parts of the sums that the loss divides by."""
    compute = keras_bridge.loss_and_updates(model)

    def parts(state: State, position: Position) -> Arrays:
        x, y, weight = keras_bridge.unpack(fetch(*position))
        with asking() as own:
            compute(
                state.trainable,
                state.non_trainable,
                state.metrics,
                x,
                y,
                weight,
                training=True,
                optimizer_variables=state.optimizer,
            )
        return own

    return parts


def evaluation_step(model: keras.Model, fetch: Fetch) -> Step:
    """Return the step that `evaluate` repeats: forward, loss and metrics."""
    forward = keras_bridge.loss_and_updates(model)
    update_metrics = metrics_update(model)

    def step(state: State, position: Position) -> tuple[State, Logs]:
        x, y, weight = keras_bridge.unpack(fetch(*position))
        _, (loss, y_pred, non_trainable, metrics) = forward(
            state.trainable, state.non_trainable, state.metrics, x, y, weight, training=False
        )
        logs, metrics = update_metrics(metrics, loss, x, y, y_pred, weight)
        state = state._replace(non_trainable=non_trainable, metrics=metrics)
        return state, _own_logs(model, logs)

    return step


def prediction_step(model: keras.Model, fetch: Fetch) -> Forward:
    """Return the step that `predict` repeats: the forward pass."""
    arguments = keras_bridge.call_training_argument(model, training=False)

    def step(state: State, position: Position) -> tuple[State, Any]:
        x, _, _ = keras_bridge.unpack(fetch(*position))
        outputs, non_trainable = model.stateless_call(
            state.trainable, state.non_trainable, x, **arguments
        )
        return state._replace(non_trainable=non_trainable), outputs

    return step


def results(model: keras.Model, state: State, logs: Logs) -> Logs:
    """Return what is reported after some steps: the metrics' values, or the model's own logs."""
    return logs or keras_bridge.metric_results(model, state.metrics)


def _asking(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Have a loss ask for what it divides by, from the start each time that it is traced."""

    def compute_asking(*args: Any, **kwargs: Any) -> Any:
        with asking():
            return compute(*args, **kwargs)

    return compute_asking


def _own_logs(model: keras.Model, logs: Logs) -> Logs:
    # Without an override the metrics' values follow from their state, and are computed once per
    # device call instead of in every step.
    return logs if keras_bridge.overridden(model, ("compute_metrics",)) else {}
