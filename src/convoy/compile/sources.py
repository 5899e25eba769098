"""Runs whose programs are compiled: those of `convoy train`, and those of a user's script."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras
from convoy import context
from convoy.strategy import Strategy
from convoy.train.flags import Options
from convoy.train.input import Images, open_images, test_input, training_input
from convoy.train.run_settings import RunSettings, make_run_settings
from convoy.train.training import prepare_training, training_strategy
from convoy.train.validation import Validation, validation_strategy
from convoy_command.program import run_script

SAVING = ("save", "save_weights", "export")


def run_training(options: Options, notify: Callable[[str], None]) -> None:
    """Run the phases of `convoy train`, without writing a file.

    Without the dataset, images are random, because only their shapes matter.

    Raises:
        ValueError: if options contradict each other.
    """
    settings = make_run_settings(options)
    images, options = _open(settings, notify)
    samples = images.train_samples or settings.info.train
    settings = make_run_settings(options, samples)
    if options.training:
        training = prepare_training(settings, training_strategy(settings))
        with training_input(settings, images) as data:
            training.model.fit(**data, verbose=0)
    if options.validation:
        validation = Validation(settings, validation_strategy(settings), images)
        with test_input(settings, images) as data:
            validation.model.evaluate(**data, verbose=0)


def _open(settings: RunSettings, notify: Callable[[str], None]) -> tuple[Images, Options]:
    options = settings.options
    try:
        return open_images(options, settings.info, settings.seed), options
    except ValueError:
        notify(f"{options.dataset} was not found, so random images replace it.")
    options = replace(options, synthetic_data="host")
    return open_images(options, settings.info, settings.seed), options


def run_program(words: Sequence[str], replicas: int | None) -> None:
    """Run a script until its end, without saving models.

    Args:
        words: the script and its arguments.
        replicas: number of replicas for a script that does not use Convoy, which then runs in a
            strategy's scope as under `convoy launch --replicas`.
    """
    scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if replicas is not None:
        scope = Strategy(replicas, batch="global", batch_norm_group=replicas).scope()
    # Models are not saved, because their weights have no values.
    saving = [(keras.Model, name, lambda *_args, **_settings: None) for name in SAVING]
    with context.changed([(sys, "argv", list(words)), *saving]), scope:
        run_script()
