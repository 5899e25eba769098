"""Networks, optimizers, devices and compiled models from settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import convoy
import keras
from convoy import distributed
from convoy.pipeline import canonical_name
from keras.optimizers.schedules import LearningRateSchedule

from cosmoflow.learning_rate import make_schedule
from cosmoflow.run_plan import RunPlan
from cosmoflow.settings import Settings

Networks = Mapping[str, Callable[..., keras.Model]]
"""Functions that return a network, by name."""
MAE = "mae"


def check_settings(networks: Networks, settings: Settings, *, use_estimator: bool) -> None:
    """Check names and combinations of settings before anything is built.

    Args:
        networks: the available networks.
        settings: settings of the run.
        use_estimator: whether to train with an estimator.

    Raises:
        ValueError: with the name of the invalid setting.
    """
    name = settings.model.name
    if name not in networks:
        raise ValueError(f"model.name {name!r} is unknown. Set one of {', '.join(networks)}.")
    known = list(inspect.signature(networks[name]).parameters)
    unknown = sorted(set(settings.model.arguments) - set(known))
    if unknown:
        raise ValueError(
            f"model.{unknown[0]} is not an argument of the network {name}. It takes "
            f"{', '.join(known)}."
        )
    make_optimizer(settings, settings.learning_rate.base_lr or 0.0)
    for setting, module, names in (
        ("loss", "losses", [settings.train.loss]),
        ("metrics", "metrics", settings.train.metrics),
    ):
        for name in names:
            try:
                getattr(keras, module).get(name)
            except ValueError:
                raise ValueError(
                    f"train.{setting}: Keras has no {name!r}. Set a name from keras.{module}."
                ) from None
    if settings.train.target_mae is not None and not settings.data.n_valid:
        raise ValueError("train.target_mae needs validation. Set data.n_valid to more than 0.")
    devices = settings.ipu_config
    if devices.activation_checkpointing and devices.stages == 1:
        raise ValueError(
            "ipu_config.activation_checkpointing needs stages. Set ipu_config.stages to 2 or more."
        )
    schedule = canonical_name(devices.pipeline_schedule)
    if use_estimator and (devices.activation_checkpointing or schedule != "1f1b"):
        raise ValueError(
            "--use-estimator runs stages by the 1f1b schedule and keeps activations. Remove "
            "ipu_config.pipeline_schedule and activation_checkpointing."
        )


def make_network(networks: Networks, settings: Settings) -> keras.Model:
    """Return the network of the settings.

    Raises:
        ValueError: if its arguments are inconsistent.
    """
    return networks[settings.model.name](**settings.network_arguments)


def make_optimizer(
    settings: Settings, learning_rate: float | LearningRateSchedule
) -> keras.optimizers.Optimizer:
    """Return the optimizer of the settings.

    Raises:
        ValueError: if Keras has no such optimizer, or it does not take an argument.
    """
    name = settings.optimizer.name
    kind = getattr(keras.optimizers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)):
        raise ValueError(
            f"optimizer.name: Keras has no optimizer {name!r}. Set a name from keras.optimizers."
        )
    try:
        return kind(learning_rate=learning_rate, **settings.optimizer.arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"optimizer: {error}") from None


def metric_names(settings: Settings) -> list[str]:
    """Return the metrics of the settings, and the MAE."""
    return list(dict.fromkeys([*settings.train.metrics, MAE]))


def learning_rate(plan: RunPlan) -> float | LearningRateSchedule:
    """Return the learning rate of a run, or its schedule."""
    batch = plan.batch
    return make_schedule(
        plan.settings.learning_rate, batch.global_batch, batch.micro_batch, plan.updates_per_epoch
    )


def make_strategy(plan: RunPlan) -> convoy.Strategy:
    """Return the strategy of a run; in a launched run, with the devices of all processes."""
    precision = plan.settings.ipu_config.precision
    return convoy.Strategy(
        devices=None if distributed.count() > 1 else plan.devices,
        gradient_accumulation=plan.batch.gradient_accumulation,
        precision=precision,
        loss_scale="auto" if precision.startswith("16.") else None,
    )


def make_model(networks: Networks, plan: RunPlan, strategy: convoy.Strategy) -> keras.Model:
    """Return the compiled model, split into pipeline stages if the settings have several."""
    settings, devices = plan.settings, plan.settings.ipu_config
    with strategy.scope():
        model = make_network(networks, settings)
        model.compile(
            make_optimizer(settings, learning_rate(plan)),
            settings.train.loss,
            metrics=metric_names(settings),
            steps_per_execution=plan.steps_per_execution,
            auto_scale_loss=False,
        )
    if devices.stages > 1:
        convoy.split(model, devices.stages, batch_size=plan.batch.micro_batch)
        model.set_pipelining_options(
            schedule=devices.pipeline_schedule,
            activation_checkpointing=devices.activation_checkpointing,
        )
    return model
