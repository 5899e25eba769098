"""From settings to a model that is ready to be trained."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import convoy
import keras
from convoy import distributed
from convoy.pipeline import canonical_name

from cosmoflow.learning_rate import make_schedule
from cosmoflow.run_plan import Plan
from cosmoflow.settings import Settings

Networks = Mapping[str, Callable[..., keras.Model]]
MAE = "mae"


def check_settings(networks: Networks, settings: Settings, *, by_estimator: bool) -> None:
    """Refuse a network, an optimizer, a loss or a metric that there is not.

    Args:
        networks: functions that make a network, by name.
        settings: of the run.
        by_estimator: whether an estimator trains.

    Raises:
        ValueError: with the setting that is wrong.
    """
    arguments = dict(settings.model)
    name = arguments.pop("name")
    if name not in networks:
        raise ValueError(f"model.name {name!r} is not one of {', '.join(networks)}.")
    known = list(inspect.signature(networks[name]).parameters)
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ValueError(
            f"model.{unknown[0]}: the network {name} does not take it; it takes {', '.join(known)}."
        )
    make_optimizer(settings, settings.learning_rate.base_lr)
    for section, get, asked in (
        ("loss", keras.losses.get, [settings.train.loss]),
        ("metrics", keras.metrics.get, settings.train.metrics),
    ):
        for word in asked:
            try:
                get(word)
            except ValueError:
                raise ValueError(f"train.{section}: Keras has no {word!r}.") from None
    if settings.train.target_mae is not None and not settings.data.n_valid:
        raise ValueError("train.target_mae is of validation: set data.n_valid to more than 0.")
    devices = settings.devices
    if devices.recompute and devices.stages == 1:
        raise ValueError("ipu_config.recompute is of stages: set ipu_config.stages to 2 or more.")
    if by_estimator and (devices.recompute or canonical_name(devices.pipeline_schedule) != "1f1b"):
        raise ValueError(
            "--use-estimator runs stages by the 1f1b schedule and keeps activations. Leave "
            "ipu_config.pipeline_schedule and recompute out."
        )


def make_network(networks: Networks, settings: Settings) -> keras.Model:
    """Return the network that was asked for.

    Raises:
        ValueError: if its arguments do not fit together.
    """
    arguments = dict(settings.model)
    return networks[arguments.pop("name")](**arguments)


def make_optimizer(settings: Settings, rate: Any) -> keras.optimizers.Optimizer:
    """Return the optimizer that was asked for.

    Raises:
        ValueError: if Keras has none of that name, or it does not take an argument.
    """
    arguments = dict(settings.optimizer)
    name = arguments.pop("name")
    kind = getattr(keras.optimizers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)):
        raise ValueError(f"optimizer.name: Keras has no optimizer {name!r}.")
    try:
        return kind(learning_rate=rate, **arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"optimizer: {error}") from None


def metrics_of(settings: Settings) -> list[str]:
    """Return what is measured: what was asked for, and the MAE."""
    asked = list(settings.train.metrics)
    return asked if MAE in asked else [*asked, MAE]


def learning_rate(plan: Plan) -> Any:
    """Return the learning rate of a run, or its schedule."""
    batch = plan.batch
    return make_schedule(
        plan.settings.learning_rate, batch.global_batch, batch.micro_batch, plan.updates_per_epoch
    )


def make_strategy(plan: Plan) -> convoy.Strategy:
    """Return the devices of a run; in a launched one, those of all its distributed."""
    devices = plan.settings.devices
    half = devices.precision.startswith("16.")
    return convoy.Strategy(
        devices=None if distributed.count() > 1 else plan.devices,
        gradient_accumulation=plan.batch.accumulation,
        precision=devices.precision,
        loss_scale="auto" if half else None,
    )


def make_model(networks: Networks, plan: Plan, strategy: convoy.Strategy) -> keras.Model:
    """Make, compile and, if asked to, cut the network."""
    settings, devices = plan.settings, plan.settings.devices
    with strategy.scope():
        model = make_network(networks, settings)
        model.compile(
            make_optimizer(settings, learning_rate(plan)),
            settings.train.loss,
            metrics=metrics_of(settings),
            steps_per_execution=plan.steps_per_call,
            auto_scale_loss=False,
        )
    if devices.stages > 1:
        convoy.split(model, devices.stages, batch_size=plan.batch.micro_batch)
        model.set_pipelining_options(
            schedule=devices.pipeline_schedule, recompute=devices.recompute
        )
    return model
