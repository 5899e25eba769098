"""The training phase."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import convoy
import keras
from convoy.pipeline.stages import calls_of
from convoy.precision import find as find_precision
from convoy.progress_bar import Output
from convoy.train.adapt import adapt_layers
from convoy.train.input import Images, some_images, training_input
from convoy.train.learning_rate import Schedule, make_schedule
from convoy.train.loss import make_accuracy, make_loss
from convoy.train.metrics_row import Record
from convoy.train.network import make_network, recommended_splits
from convoy.train.optimizer import make_optimizer
from convoy.train.progress_callback import Watch
from convoy.train.resume import make_checkpoints
from convoy.train.run_folder import RunFolder
from convoy.train.run_settings import AUTO, RunPlan

StochasticRounding = Literal["off", "on", "replica_identical"]
_ROUNDING: dict[str, StochasticRounding] = {
    "OFF": "off",
    "ON": "on",
    "REPLICA_IDENTICAL_ONLY": "replica_identical",
}


@dataclass(frozen=True)
class Training:
    """A model that is ready to be trained."""

    plan: RunPlan
    model: keras.Model
    schedule: Schedule


def training_strategy(plan: RunPlan) -> convoy.Strategy:
    options = plan.options
    scale: float | str | None = options.loss_scaling or None
    rounds = find_precision(options.precision).update_dtype != "float32"
    return convoy.Strategy(
        devices=plan.devices,
        gradient_accumulation=plan.batch.accumulation,
        batch_norm_group=options.batch_norm_group,
        precision=options.precision,
        loss_scale="auto" if options.auto_loss_scaling else scale,
        stochastic_rounding=_ROUNDING[options.stochastic_rounding] if rounds else "off",
        # Stages on one device were a way to forget activations.
        activation_checkpointing="auto"
        if options.activation_checkpointing and not plan.in_pipeline
        else None,
    )


def prepare_training(plan: RunPlan, strategy: convoy.Strategy) -> Training:
    """Make and compile the model.

    Raises:
        ValueError: if the model, a split, the optimizer or the schedule cannot be made.
    """
    options = plan.options
    schedule = make_schedule(
        options.lr_schedule,
        options.lr_schedule_params,
        batch=plan.batch.global_batch,
        updates=plan.events.updates_per_epoch,
        warm_up=options.lr_warmup_params,
        staircase=options.lr_staircase,
    )
    with strategy.scope():
        model = make_network(options, plan.info, plan.batch.accumulation)
        model.compile(
            make_optimizer(options, schedule, plan.batch.global_batch, plan.events.updates),
            make_loss(options.label_smoothing, shares=plan.mixes_labels),
            metrics=[make_accuracy("training_accuracy", shares=plan.mixes_labels)],
            steps_per_execution=plan.steps_per_execution,
            auto_scale_loss=False,
        )
    automatic = options.pipeline_splits[:1] == [AUTO]
    if automatic and plan.in_pipeline:
        convoy.split(model, plan.stages, batch_size=plan.batch.micro_batch)
    elif plan.stages > 1 and not automatic:
        convoy.split(model, options.pipeline_splits)
    if plan.in_pipeline:
        model.set_pipelining_options(
            schedule=options.pipeline_schedule,
            device_mapping=options.device_mapping,
            recompute=options.activation_checkpointing,
        )
    else:
        model.reset_pipeline_stage_assignment()
    return Training(plan, model, schedule)


def first_layers(model: keras.Model) -> list[str]:
    """Return the layers with which the second and later stages of a model begin."""
    stages = model.get_pipeline_stage_assignment() or []
    names = [call.name for call in calls_of(model)]
    places = zip(names[1:], stages, stages[1:], strict=False)
    return [name for name, before, stage in places if stage != before]


def describe(training: Training, output: Output) -> None:
    """Say what will be trained, before it is."""
    plan, batch = training.plan, training.plan.batch
    weights = sum(math.prod(weight.shape) for weight in training.model.trainable_weights)
    output.line(f"model               {training.model.name}, {weights:,} trainable parameters")
    output.line(f"micro batch size    {batch.micro_batch}")
    output.line(f"num replicas        {batch.replicas}")
    output.line(f"grad. accumulation  {batch.accumulation}")
    output.line(f"global batch size   {batch.global_batch}")
    output.line(
        f"weight updates      {plan.events.updates_per_epoch} per epoch, "
        f"{plan.events.per_call} per device call"
    )
    if plan.options.pipeline_splits[:1] == [AUTO]:
        output.line(f"pipeline splits     {' '.join(first_layers(training.model))}")
    elif plan.stages > 1:
        recommended = recommended_splits(training.model, plan.stages)
        if recommended != plan.options.pipeline_splits:
            output.line(f"Recommended splits = {recommended}")


def train(
    training: Training,
    images: Images,
    folder: RunFolder,
    output: Output,
    listeners: list[Callable[[Record], None]],
) -> Watch:
    """Run the training phase; returns what was seen."""
    plan = training.plan
    watch = Watch(plan, training.schedule, folder, output, listeners)
    adapt_layers(training.model, lambda: some_images(plan, images))
    if plan.options.mlperf_logging:
        _rehearse(training, images)
    checkpoints = make_checkpoints(plan, folder)
    watchers = [watch] if checkpoints is None else [watch, checkpoints]
    _fit(training, images, plan.events.keras_epochs, watchers)
    return watch


def _rehearse(training: Training, images: Images) -> None:
    """Train an epoch so that all is compiled, then put everything back."""
    model = training.model
    model.optimizer.build(model.trainable_variables)
    kept = [(v, v.numpy()) for v in (*model.variables, *model.optimizer.variables)]
    _fit(training, images, 1, [])
    for variable, value in kept:
        variable.assign(value)


def _fit(
    training: Training, images: Images, epochs: int, watchers: list[keras.callbacks.Callback]
) -> None:
    with training_input(training.plan, images) as data:
        training.model.fit(**data, epochs=epochs, verbose=0, callbacks=watchers)
