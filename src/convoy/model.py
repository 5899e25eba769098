"""Attachment of the methods of Convoy's trainer to a Keras model and to its copies."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
import keras
from convoy import keras_bridge
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.prepared_model import PreparedModel
from convoy.serving import export
from convoy.trainer.engine_model import EngineModel, ModelStrategy
from convoy.trainer.methods import TrainerMethods
from convoy.trainer.options import ModelOptions, OptionMethods
from convoy.trainer.routing import Routing
from convoy.types import PyTree

# Once, for all models: those that no strategy has prepared run as before.
keras_bridge.route_methods()
keras_bridge.make_crops_compilable()


def attach(
    model: keras.Model,
    config: ExecutionConfig,
    data_budget: int,
    devices: Sequence[jax.Device],
    strategy: ModelStrategy,
) -> None:
    """Make a model run on the engine. Its class, weights and compilation do not change.

    Args:
        model: the model.
        config: the configuration of its runs.
        data_budget: bytes of each device's memory that data may take.
        devices: the devices of the strategy.
        strategy: the strategy, whose observer is used from the next run on.
    """
    prepared = PreparedModel.of(model)
    prepared.devices, prepared.data_budget = tuple(devices), data_budget
    engine_model = EngineModel(model, config, strategy)
    trainer, routing = TrainerMethods(engine_model), Routing(engine_model)
    options = OptionMethods(engine_model)
    prepared.use_options = options.use_options
    prepared.methods = {
        name: routing.route(name, getattr(trainer, name)) for name in keras_bridge.RUN_METHODS
    } | {
        "compile": trainer.compile,
        "__reduce__": lambda: _reduce(model, strategy, options.options()),
        keras_bridge.COPY: lambda clone: copy_to(strategy, options.options(), clone),
    }
    # Not through `setattr`: Keras would track it as a part of the model.
    vars(model).update({name: getattr(options, name) for name in options.added})
    vars(model)["export_for_serving"] = partial(export_for_serving, model)


def export_for_serving(model: keras.Model, folder: str | Path, **settings: PyTree) -> Path:
    """Write a model as a new version that `convoy serve` can serve.

    Args:
        model: the model.
        folder: the model's folder, with a folder for each version.
        **settings: those of `convoy.export`.

    Returns:
        The version's folder.
    """
    return export(model, folder, **settings)


def copy_to(strategy: ModelStrategy, options: ModelOptions, clone: keras.Model) -> None:
    """Make a clone of a model run as the model does.

    Args:
        strategy: the strategy of the model.
        options: the options of the model.
        clone: the clone.
    """
    strategy.adopt(clone)
    PreparedModel.of(clone).use_options(options)


def restore_copy(
    make: Callable[..., keras.Model],
    arguments: tuple,
    strategy: ModelStrategy | None,
    options: ModelOptions,
) -> keras.Model:
    """Make a copy of a model that was copied or pickled, with the strategy that it had."""
    model = make(*arguments)
    if strategy is not None and not PreparedModel.of(model).methods:
        copy_to(strategy, options, model)
    return model


def _reduce(
    model: keras.Model, strategy: ModelStrategy, options: ModelOptions
) -> tuple[Callable[..., keras.Model], tuple]:
    stock = keras_bridge.stock_method(model, "__reduce__")()
    return restore_copy, (*stock, strategy, options)
