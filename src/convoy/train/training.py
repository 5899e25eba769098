"""The training phase: strategy, compiled model and `fit`."""

import math
from dataclasses import dataclass
from pathlib import Path

import convoy
import keras
from convoy.data.image_folder import FOLDER
from convoy.engine.progress import reported_to
from convoy.error_messages import first_names
from convoy.pipeline.stages import calls_of
from convoy.precision import find as find_precision
from convoy.progress_bar import Output
from convoy.train.compile_only import CompileOnly
from convoy.train.fine_tuning import freeze, load_initial_weights
from convoy.train.input import Images, some_images, training_input
from convoy.train.learning_rate import Schedule, make_schedule
from convoy.train.loss import make_accuracy, make_loss
from convoy.train.network import adapt_layers, make_network, recommended_splits
from convoy.train.optimizer import make_optimizer
from convoy.train.progress_callback import ProgressCallback
from convoy.train.resume import make_checkpoints
from convoy.train.run_log import RunLog
from convoy.train.run_settings import AUTO, RunSettings
from convoy.train.stages import split_into_stages


@dataclass(frozen=True)
class Training:
    """A compiled model with its settings and learning-rate schedule.

    Attributes:
        settings: settings of the run.
        model: the model.
        schedule: its learning-rate schedule.
        initial_weights: description of the weights before the first update.
    """

    settings: RunSettings
    model: keras.Model
    schedule: Schedule
    initial_weights: str = "random"


def training_strategy(settings: RunSettings) -> convoy.Strategy:
    options = settings.options
    static: float | None = options.loss_scale or None
    rounds = find_precision(options.precision).update_dtype != "float32"
    return convoy.Strategy(
        devices=settings.devices,
        gradient_accumulation=settings.batch.gradient_accumulation,
        batch_norm_group=options.batch_norm_group,
        shard=options.shard,
        precision=options.precision,
        loss_scale="auto" if options.auto_loss_scale else static,
        stochastic_rounding=options.stochastic_rounding if rounds else "off",
        # Stages on one device are used to reduce the stored activations.
        activation_checkpointing="auto"
        if options.activation_checkpointing and not settings.in_pipeline
        else None,
    )


def prepare_training(settings: RunSettings, strategy: convoy.Strategy) -> Training:
    """Make and compile the model.

    Raises:
        ValueError: if the model, a split, the optimizer or the schedule cannot be made.
    """
    options = settings.options
    batch, events = settings.batch, settings.events
    schedule = make_schedule(options, batch.global_batch, events.updates_per_epoch)
    with strategy.scope():
        model = make_network(options, settings.info, batch.gradient_accumulation)
        initial_weights = "random"
        if options.weights is not None:
            initial_weights = load_initial_weights(model, Path(options.weights))
        if options.freeze_until is not None:
            freeze(model, options.freeze_until)
        model.compile(
            make_optimizer(options, schedule, batch.global_batch, events.updates),
            make_loss(options.label_smoothing, probabilities=settings.mixes_labels),
            metrics=[make_accuracy("training_accuracy", probabilities=settings.mixes_labels)],
            steps_per_execution=settings.steps_per_execution,
            auto_scale_loss=False,
        )
    split_into_stages(model, settings, batch.micro_batch)
    return Training(settings, model, schedule, initial_weights)


def first_layers(model: keras.Model) -> list[str]:
    """Return the first layers of the second and later stages of a model."""
    stages = model.get_pipeline_stage_assignment() or []
    names = [call.name for call in calls_of(model)]
    places = zip(names[1:], stages, stages[1:], strict=False)
    return [name for name, before, stage in places if stage != before]


def describe(training: Training, images: Images, output: Output) -> None:
    """Print the sizes of the model, of a user's own dataset and of the batch before training."""
    settings, batch = training.settings, training.settings.batch
    weights = sum(math.prod(weight.shape) for weight in training.model.trainable_weights)
    output.line(f"model               {training.model.name}, {weights:,} trainable parameters")
    if settings.options.weights is not None:
        output.line(f"initial weights     {training.initial_weights}")
    if settings.options.dataset == FOLDER:
        names = settings.info.class_names
        output.line(
            f"images              {images.train_samples:,} to train on, {images.test_samples:,} to "
            f"validate on, {len(names)} classes: {first_names(names)}"
        )
    output.line(f"micro batch size    {batch.micro_batch}")
    output.line(f"num replicas        {batch.replicas}")
    output.line(f"grad. accumulation  {batch.gradient_accumulation}")
    output.line(f"global batch size   {batch.global_batch}")
    output.line(
        f"weight updates      {settings.events.updates_per_epoch} per epoch, "
        f"{settings.events.per_call} per device call"
    )
    splits = settings.options.pipeline_splits
    if splits[:1] == [AUTO]:
        output.line(f"pipeline splits     {' '.join(first_layers(training.model))}")
    elif settings.stages > 1:
        recommended = recommended_splits(training.model, settings.stages)
        if recommended != splits:
            output.line(f"Recommended splits = {recommended}")


def train(training: Training, images: Images, log: RunLog) -> ProgressCallback:
    """Run the training phase; return the callback that has its metrics."""
    settings = training.settings
    progress = ProgressCallback(settings, training.schedule, log)
    adapt_layers(training.model, lambda: some_images(settings, images))
    if settings.options.mlperf_logging:
        _warm_up(training, images)
    checkpoints = make_checkpoints(settings, log.folder)
    callbacks = [progress] if checkpoints is None else [progress, checkpoints]
    with reported_to(progress):
        _fit(training, images, settings.events.keras_epochs, callbacks)
    return progress


def compile_programs(
    training: Training, images: Images, strategy: convoy.Strategy
) -> dict[str, float]:
    """Compile the programs of the training phase, without training.

    Returns:
        The time of each compilation in seconds, by the name of the program.
    """
    adapt_layers(training.model, lambda: some_images(training.settings, images))
    strategy.observer = observer = CompileOnly()
    _fit(training, images, 1, [])
    return observer.seconds


def _warm_up(training: Training, images: Images) -> None:
    """Train one epoch so that all programs are compiled, and restore all variables."""
    model = training.model
    model.optimizer.build(model.trainable_variables)
    kept = [(v, v.numpy()) for v in (*model.variables, *model.optimizer.variables)]
    _fit(training, images, 1, [])
    for variable, value in kept:
        variable.assign(value)


def _fit(
    training: Training, images: Images, epochs: int, callbacks: list[keras.callbacks.Callback]
) -> None:
    with training_input(training.settings, images) as data:
        training.model.fit(**data, epochs=epochs, verbose=0, callbacks=callbacks)
