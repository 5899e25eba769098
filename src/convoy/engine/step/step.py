"""One micro-batch as a pure function: forward pass, loss, gradients and metrics."""

from collections.abc import Callable

import jax
import keras
from convoy import keras_bridge
from convoy.engine.data.local_batch import Fetch
from convoy.engine.numerics.loss_scale import scale_loss
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.state import Mode, State
from convoy.engine.step.global_batch import metrics_update, number_denominators
from convoy.engine.step.gradients import map_gradients, value_and_gradients
from convoy.types import Arrays, Logs, PyTree
from jax.extend.core import Primitive

Position = tuple[PyTree, jax.Array]
"""The source of a chunk, and the index of a micro-batch in it."""

GradientStep = Callable[[State, Position], tuple[State, Arrays, Logs]]
Step = Callable[[State, Position], tuple[State, Logs]]
ForwardStep = Callable[[State, Position], tuple[State, PyTree]]
DenominatorStep = Callable[[State, Position], Arrays]
Gather = Callable[[Arrays], Arrays]


def gradient_step(model: keras.Model, fetch: Fetch, gather: Gather | None = None) -> GradientStep:
    """Return the training step of a model without its weight update.

    It runs on the micro-batch that `fetch` returns for a position. It returns a state with new
    statistics, random states and metrics. The logs are those of an overridden `compute_metrics`,
    and empty otherwise; see `results`.

    Args:
        model: the model.
        fetch: function that returns the micro-batch at a position.
        gather: function that gathers the weights from the shards in the state, for the forward pass
            and again for the backward pass; gradients are those of the shards. By default, the
            state contains the complete weights.
    """
    compute = keras_bridge.loss_and_updates(model)
    if gather is not None:
        compute = _gathering(compute, gather)
    update_metrics = metrics_update(model)
    numerics = PreparedModel.of(model).numerics

    def compute_loss(*args: PyTree, **kwargs: PyTree) -> tuple[jax.Array, PyTree]:
        with number_denominators():
            return compute(*args, **kwargs)

    def step(state: State, position: Position) -> tuple[State, Arrays, Logs]:
        x, y, weight = batch = keras_bridge.unpack(fetch(*position))
        scaled = scale_loss(compute_loss, numerics.loss_scale(state.numerics))
        (_, (loss, y_pred, non_trainable, metrics)), gradients, captured = value_and_gradients(
            scaled, *_read_by_loss(state), *batch, **_in_training(state)
        )
        logs, metrics = update_metrics(metrics, loss, x, y, y_pred, weight)
        state = state._replace(
            non_trainable=non_trainable,
            metrics=metrics,
            numerics=numerics.count(state.numerics, gradients, list(captured.values())),
        )
        return state, map_gradients(model, state.trainable, gradients), _own_logs(model, logs)

    return step


def denominator_step(
    model: keras.Model, fetch: Fetch, gather: Gather | None = None
) -> DenominatorStep:
    """Return a function that computes a micro-batch's contribution to the loss's denominators."""
    compute = keras_bridge.loss_and_updates(model)

    def step(state: State, position: Position) -> Arrays:
        batch = keras_bridge.unpack(fetch(*position))
        whole = state if gather is None else state._replace(trainable=gather(state.trainable))
        with number_denominators() as own:
            compute(*_read_by_loss(whole), *batch, **_in_training(state))
        return own or []

    return step


def evaluation_step(model: keras.Model, fetch: Fetch) -> Step:
    """Return the step of `evaluate`: forward pass, loss and metrics."""
    forward = keras_bridge.loss_and_updates(model)
    update_metrics = metrics_update(model)

    def step(state: State, position: Position) -> tuple[State, Logs]:
        x, y, weight = batch = keras_bridge.unpack(fetch(*position))
        _, (loss, y_pred, non_trainable, metrics) = forward(
            *_read_by_loss(state), *batch, training=False
        )
        logs, metrics = update_metrics(metrics, loss, x, y, y_pred, weight)
        state = state._replace(non_trainable=non_trainable, metrics=metrics)
        return state, _own_logs(model, logs)

    return step


def prediction_step(model: keras.Model, fetch: Fetch) -> ForwardStep:
    """Return the step of `predict`: the forward pass."""
    arguments = keras_bridge.call_training_argument(model, training=False)

    def step(state: State, position: Position) -> tuple[State, PyTree]:
        x, _, _ = keras_bridge.unpack(fetch(*position))
        outputs, non_trainable = model.stateless_call(
            state.trainable, state.non_trainable, x, **arguments
        )
        return state._replace(non_trainable=non_trainable), outputs

    return step


def custom_step(model: keras.Model, mode: Mode, fetch: Fetch) -> Step | None:
    """Return a model's custom step, such as an overridden `train_step`, or `None`.

    It includes the weight update, and receives the global batch.
    """
    own = keras_bridge.custom_step(model, mode)
    if own is None:
        return None
    fields = ["trainable", "non_trainable"]
    if mode == "train":
        fields.append("optimizer")
    if mode != "predict":
        fields.append("metrics")

    def step(state: State, position: Position) -> tuple[State, Logs]:
        outcome, new = own(tuple(getattr(state, name) for name in fields), fetch(*position))
        values = {name: list(part) for name, part in zip(fields, new, strict=True)}
        return state._replace(**values), outcome

    return step


def _gathering(compute: Callable[..., PyTree], gather: Gather) -> Callable[..., PyTree]:
    """Gather the weights that a loss reads, for the forward pass and for the backward pass."""

    def gathering(stored: Arrays, *args: PyTree, **kwargs: PyTree) -> tuple[jax.Array, PyTree]:
        def on_gathered(stored: Arrays) -> tuple[jax.Array, PyTree, PyTree]:
            loss, (own, y_pred, *state) = compute(gather(stored), *args, **kwargs)
            masks = jax.tree.map(keras_bridge.get_keras_mask, y_pred)
            return loss, (own, y_pred, *state), masks

        loss, updates, masks = jax.checkpoint(on_gathered, policy=_keeps)(stored)
        # The mask is an attribute of a tensor, which JAX does not return.
        for tensor, mask in zip(jax.tree.leaves(updates[1]), _leaves(masks), strict=True):
            if mask is not None:
                keras_bridge.set_keras_mask(tensor, mask)
        return loss, updates

    return gathering


def _leaves(masks: PyTree) -> PyTree:
    return jax.tree.leaves(masks, is_leaf=lambda leaf: leaf is None)


def _keeps(primitive: Primitive, *_: PyTree, **__: PyTree) -> bool:
    # The copy of a gathered weight in the compute dtype of its layer is not stored either.
    return primitive.name not in ("all_gather", "convert_element_type")


def _read_by_loss(state: State) -> tuple[Arrays, Arrays, Arrays]:
    return state.trainable, state.non_trainable, state.metrics


def _in_training(state: State) -> dict[str, PyTree]:
    return {"training": True, "optimizer_variables": state.optimizer}


def results(model: keras.Model, state: State, logs: Logs) -> Logs:
    """Return the logs for callbacks after some steps: the model's own logs, or all metrics."""
    return logs or keras_bridge.metric_results(model, state.metrics)


def _own_logs(model: keras.Model, logs: Logs) -> Logs:
    # Without an override, the values of the metrics are computed from their state, once per device
    # call instead of in every step.
    return logs if keras_bridge.overridden(model, ("compute_metrics",)) else {}
