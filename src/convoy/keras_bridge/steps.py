"""Loss and metrics of one step, and decisions of Keras's training loop about epochs.

`Model.train_step` combines all of these with Keras's own gradients and updates. The engine needs
them one by one, and Keras has them as private methods of its JAX trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
from convoy import user_warnings
from convoy.keras_bridge.models import overridden
from convoy.keras_bridge.variables import Variables
from keras import Model


def loss_and_updates(model: Model) -> Callable[..., tuple[jax.Array, tuple]]:
    """Return the stateless function of forward pass and loss; its first argument is the weights."""
    return model.compute_loss_and_updates


def custom_step(model: Model, mode: str) -> Callable[[tuple, Any], tuple[Any, tuple]] | None:
    """Return the step that a model defines itself, in the stateless form of Keras's JAX trainer.

    Returns:
        A function of the state (trainable and non-trainable variables, those of the optimizer for
        training, those of metrics except for prediction) and a batch. It returns logs or outputs,
        and the new state. `None` if the step is Keras's own.
    """
    name = {"train": "train_step", "evaluate": "test_step", "predict": "predict_step"}[mode]
    if not overridden(model, (name,)):
        return None
    own = getattr(model, name)
    if mode != "predict":
        return own

    def predict_step(state: tuple, batch: Any) -> tuple[Any, tuple]:
        outputs, non_trainable = own(state, batch)
        return outputs, (state[0], non_trainable)

    return predict_step


def update_metrics(
    model: Model,
    metrics: list[jax.Array],
    loss: jax.Array,
    x: Any,
    y: Any,
    y_pred: Any,
    weight: Any,
) -> tuple[dict[str, Any], list[jax.Array]]:
    """Update the state of all metrics with one batch; return the logs and the new state."""
    return model._update_metrics_variables(metrics, loss, x, y, y_pred, weight)


def compiled_loss(
    model: Model, metrics: list[jax.Array], y: Any, y_pred: Any, weight: Any
) -> tuple[jax.Array, list[jax.Array]]:
    """Compute the loss given to `compile`, without the losses of layers, and the metrics' state."""
    # `model.compute_loss` would add the losses of layers. The compiled loss updates metrics too:
    # the loss of each output, if there are several.
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


def epoch_logs(model: Model, logs: dict[str, Any]) -> dict[str, Any]:
    """Return the logs of an epoch, given those of its last step.

    Logs that have the names of the metrics are replaced by the metrics' own values.
    """
    return dict(model._get_metrics_result_or_logs(logs))


def flat_metrics(model: Model, logs: dict[str, float]) -> Any:
    """Return logs as the list, or the single number, that `evaluate` returns by default."""
    return model._flatten_metrics_in_order(logs)


def compiled_losses(model: Model) -> list[tuple[tuple, Any]]:
    """Return a path into the targets, and the loss, of every output that has a loss.

    Before Keras builds the losses, they are the arguments of `compile`, which may be names.
    """
    if model._compile_loss is None:
        return []
    if not model._compile_loss.built:
        return keras.tree.flatten_with_path(model._compile_loss._user_loss)
    return [(loss.path, loss.loss) for loss in model._compile_loss._flat_losses]


def layer_metrics(model: Model) -> list[tuple[str, str]]:
    """Return the names of the metrics that layers own, with their layers."""
    if overridden(model, ("compute_metrics", "compute_loss")):
        return []
    return [
        (layer.name, metric.name)
        for layer in model._flatten_layers(include_self=False)
        if not isinstance(layer, Model)
        for metric in layer._metrics
    ]


def of_custom_metrics(model: Model, variables: Variables) -> tuple[bool, ...]:
    """Return for each variable whether it belongs to a compiled metric of a user's class."""
    compiled = model._compile_metrics.metrics if model._compile_metrics is not None else []
    own = {
        id(variable)
        for metric in compiled
        if not type(metric).update_state.__module__.startswith(("keras.", "convoy."))
        for variable in metric.variables
    }
    return tuple(id(variable) in own for variable in variables)


def set_loss_tracker(model: Model, metric: keras.metrics.Metric) -> None:
    """Replace the metric that reports the loss of a compiled model."""
    # Not through `setattr`: Keras would track it as a metric of a layer too.
    vars(model)["_loss_tracker"] = metric


def initial_epoch(model: Model, default: int) -> int:
    """Return the first epoch, which a callback such as `BackupAndRestore` may have set."""
    return model._initial_epoch or default


def should_validate(model: Model, epoch: int, frequency: int | list[int]) -> bool:
    """Return whether `validation_freq` asks for validation after an epoch."""
    return model._should_eval(epoch, frequency)


def limit_steps(steps: int | None) -> int | None:
    """Apply `keras.config.set_max_steps_per_epoch`."""
    limit: int | None = keras.config.max_steps_per_epoch()
    if limit and (not steps or limit < steps):
        user_warnings.warn(f"Limiting steps_per_epoch to {limit}")
        return limit
    return steps


def limit_epochs(epochs: int) -> int:
    """Apply `keras.config.set_max_epochs`."""
    limit = keras.config.max_epochs()
    if limit and limit < epochs:
        user_warnings.warn(f"Limiting epochs to {limit}")
        return limit
    return epochs
