"""Loss and metrics of a step, and when epochs end."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import keras
from convoy.keras_bridge.models import overridden
from convoy.keras_bridge.variables import Variables
from keras import Model


def loss_and_updates(model: Model) -> Callable[..., tuple[jax.Array, tuple]]:
    """Return the stateless forward pass and loss, to be differentiated by its first argument."""
    return model.compute_loss_and_updates


def update_metrics(
    model: Model,
    metrics: list[jax.Array],
    loss: jax.Array,
    x: Any,
    y: Any,
    y_pred: Any,
    weight: Any,
) -> tuple[dict[str, Any], list[jax.Array]]:
    """Update the state of all metrics by one batch; return the model's logs and the new state."""
    return model._update_metrics_variables(metrics, loss, x, y, y_pred, weight)


def compiled_loss(
    model: Model, metrics: list[jax.Array], y: Any, y_pred: Any, weight: Any
) -> tuple[jax.Array, list[jax.Array]]:
    """Compute the loss that was compiled, without what layers add, and the metrics' new state."""
    mapping = list(zip(model.metrics_variables, metrics, strict=True))
    with keras.StatelessScope(mapping) as scope:
        loss = model._compile_loss(y, y_pred, weight) if model._compile_loss is not None else None
    return (
        jax.numpy.float32(0) if loss is None else loss,
        [scope.get_current_value(variable) for variable in model.metrics_variables],
    )


def metric_results(model: Model, metrics: list[jax.Array]) -> dict[str, Any]:
    """Compute the value of every metric from its state."""
    mapping = list(zip(model.metrics_variables, metrics, strict=True))
    with keras.StatelessScope(state_mapping=mapping):
        return model.get_metrics_result()


def flat_metrics(model: Model, logs: dict[str, float]) -> Any:
    """Return logs as the list (or the one number) that `evaluate` gives by default."""
    return model._flatten_metrics_in_order(logs)


def compiled_losses(model: Model) -> list[tuple[tuple, Any]]:
    """Return a path into the targets and a loss for every output that has a loss.

    Before the losses are built, they are as `compile` was told: names among them.
    """
    if model._compile_loss is None:
        return []
    if not model._compile_loss.built:
        return keras.tree.flatten_with_path(model._compile_loss._user_loss)
    return [(loss.path, loss.loss) for loss in model._compile_loss._flat_losses]


def unheard_metrics(model: Model) -> list[tuple[str, str]]:
    """Return the names of layers and metrics that only the layer's `call` can update."""
    if overridden(model, ("compute_metrics", "compute_loss")):
        return []
    return [
        (layer.name, metric.name)
        for layer in model._flatten_layers(include_self=False)
        if not isinstance(layer, Model)
        for metric in layer._metrics
    ]


def are_of_users_metrics(model: Model, variables: Variables) -> tuple[bool, ...]:
    """Say of metrics' variables which a class of the user's updates, as `compile` was told."""
    compiled = model._compile_metrics.metrics if model._compile_metrics is not None else []
    own = {
        id(variable)
        for metric in compiled
        if not type(metric).update_state.__module__.startswith(("keras.", "convoy."))
        for variable in metric.variables
    }
    return tuple(id(variable) in own for variable in variables)


def track_loss_by(model: Model, metric: keras.metrics.Metric) -> None:
    """Have the loss of a compiled model reported by another metric than its mean."""
    # Not through `setattr`: Keras would count it among the metrics of layers too.
    vars(model)["_loss_tracker"] = metric


def initial_epoch(model: Model, default: int) -> int:
    """Return the epoch to start from: a callback such as `BackupAndRestore` may have set it."""
    return model._initial_epoch or default


def should_validate(model: Model, epoch: int, frequency: int | list[int]) -> bool:
    return model._should_eval(epoch, frequency)


def limit_epochs(epochs: int) -> int:
    """Apply `keras.config.set_max_epochs`."""
    limit = keras.config.max_epochs()
    if limit and limit < epochs:
        warnings.warn(f"Limiting epochs to {limit}", stacklevel=3)
        return limit
    return epochs
