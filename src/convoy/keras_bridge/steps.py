"""Loss and metrics of one step, and decisions of Keras's training loop about epochs.

`Model.train_step` combines all of these with Keras's own gradients and updates. The engine needs
them one by one, and Keras has them as private methods of its JAX trainer.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import jax
import keras
from convoy import user_warnings
from convoy.keras_bridge.variables import Variables
from keras import Model


def overridden(model: Model, names: tuple[str, ...]) -> list[str]:
    """Return the names of the trainer's methods that a model, or its class, overrides."""
    # Attributes of the instance count too, because users and some wrappers assign to
    # `model.train_step`.
    return [
        name
        for name in names
        if getattr(type(model), name) is not getattr(Model, name) or name in vars(model)
    ]


def loss_and_updates(model: Model) -> Callable[..., tuple[jax.Array, tuple]]:
    """Return the stateless function of forward pass and loss; its first argument is the weights."""
    # Not documented, but without an underscore; Keras differentiates this function itself.
    if overridden(model, ("compute_metrics", "compute_loss")):
        return model.compute_loss_and_updates

    def compute(*args: Any, **kwargs: Any) -> tuple[jax.Array, tuple]:
        with metric_updates_refused(model.layers):
            return model.compute_loss_and_updates(*args, **kwargs)

    return compute


@contextmanager
def metric_updates_refused(operations: Iterable[keras.Operation]) -> Iterator[None]:
    """Raise an error if a layer among these operations updates a metric that it owns.

    Keras does not pass the state of metrics through the forward pass, so the update would be lost.
    """
    metrics = [
        (layer, metric)
        for operation in operations
        if isinstance(operation, keras.Layer)
        for layer in operation._flatten_layers()
        for metric in layer._metrics
    ]
    for layer, metric in metrics:
        # Not through `setattr`, which Keras forbids once a layer is built.
        vars(metric)["update_state"] = _refusal(layer.name, metric.name)
    try:
        yield
    finally:
        for _, metric in metrics:
            vars(metric).pop("update_state", None)


def _refusal(layer: str, metric: str) -> Callable[..., NoReturn]:
    def update_state(*_: Any, **__: Any) -> NoReturn:
        raise ValueError(
            f"Layer {layer!r} updates metric {metric!r} in call(), which Keras does not support "
            "on JAX. Pass the metric to compile(), or update it in the model's compute_metrics()."
        )

    return update_state


def custom_step(model: Model, mode: str) -> Callable[[tuple, Any], tuple[Any, tuple]] | None:
    """Return a model's custom step in the stateless form of Keras's JAX trainer.

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


def output_structure(model: Model) -> Any:
    """Return the symbolic outputs in the structure that the model returns, or `None`."""
    return getattr(getattr(model, "_functional", None) or model, "_outputs_struct", None)


def compiled_losses(model: Model) -> list[tuple[tuple, Any]]:
    """Return a path into the targets, and the loss, of every output that has a loss.

    Before Keras builds the losses, they are the arguments of `compile`, which may be names.
    """
    if model._compile_loss is None:
        return []
    # `_flat_losses` exists only after `build`, which knows the structure of the outputs.
    if not model._compile_loss.built:
        return keras.tree.flatten_with_path(model._compile_loss._user_loss)
    return [(loss.path, loss.loss) for loss in model._compile_loss._flat_losses]


def of_custom_metrics(model: Model, variables: Variables) -> tuple[bool, ...]:
    """Return for each variable whether it belongs to a compiled metric of a user's class."""
    compiled = model._compile_metrics.metrics if model._compile_metrics is not None else []
    # Keras's own metrics can be summed over micro-batches; custom metrics may have any state.
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
    # `BackupAndRestore` sets the first epoch in this attribute.
    return model._initial_epoch or default


def should_validate(model: Model, epoch: int, frequency: int | list[int]) -> bool:
    """Return whether `validation_freq` requires validation after an epoch."""
    return model._should_eval(epoch, frequency)


def limit_steps(steps: int | None) -> int | None:
    """Apply `keras.config.set_max_steps_per_epoch`."""
    limit: int | None = keras.config.max_steps_per_epoch()
    if limit and (not steps or limit < steps):
        user_warnings.warn_once(f"Limiting steps_per_epoch to {limit}")
        return limit
    return steps


def limit_epochs(epochs: int) -> int:
    """Apply `keras.config.set_max_epochs`."""
    limit = keras.config.max_epochs()
    if limit and limit < epochs:
        user_warnings.warn_once(f"Limiting epochs to {limit}")
        return limit
    return epochs
