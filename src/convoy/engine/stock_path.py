"""Models and data that the engine has no path for, and that stock Keras runs instead."""

from __future__ import annotations

from typing import NamedTuple

import keras
from convoy import keras_bridge
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.numerics.numerics import Settings
from convoy.engine.turns import TRAINING
from convoy.types import Data

FUNCTIONS = {
    "fit": "make_train_function",
    "train_on_batch": "make_train_function",
    "evaluate": "make_test_function",
    "test_on_batch": "make_test_function",
    "predict": "make_predict_function",
    "predict_on_batch": "make_predict_function",
}


class Reason(NamedTuple):
    """The reason why stock Keras runs a model.

    Attributes:
        why: a sentence for the user.
        remedy: a sentence about what would bring the engine back.
    """

    why: str
    remedy: str


def reason(model: keras.Model, method: str, inputs: list[Data]) -> Reason | None:
    """Return the reason why stock Keras must run a method of a model, or `None`.

    Args:
        model: the model.
        method: the name of the method.
        inputs: its inputs, and those of its validation.
    """
    function = FUNCTIONS[method]
    if keras_bridge.overridden(model, (function,)):
        return Reason(
            f"{type(model).__name__} overrides {function}.",
            "Override train_step, test_step or predict_step instead to use Convoy's engine.",
        )
    layers = keras_bridge.uncompilable_layers(model)
    if layers:
        return Reason(
            f"{', '.join(layers)} cannot be compiled.",
            "Apply it to the data before the model to use Convoy's engine.",
        )
    if model.run_eagerly:
        return Reason(
            "run_eagerly=True was passed to compile().", "Leave it out to use Convoy's engine."
        )
    if keras_bridge.turns_compilation_off(model):
        return Reason(
            "jit_compile=False was passed to compile().", "Leave it out to use Convoy's engine."
        )
    if keras.distribution.distribution() is not None:
        return Reason(
            "A distribution of keras.distribution is set.",
            "Unset it, and pass the devices to convoy.Strategy, to use Convoy's engine.",
        )
    if any(map(keras_bridge.is_sparse, keras.tree.flatten(inputs))):
        return Reason("The input is sparse.", "Make it dense to use Convoy's engine.")
    return None


def divisions(config: ExecutionConfig, settings: Settings, method: str, stages: bool) -> list[str]:
    """Return what a strategy asks for that needs the parts of a step one by one.

    Args:
        config: the configuration of the strategy.
        settings: loss scale and rounding of the strategy.
        method: the method of the model that was called.
        stages: whether the model has pipeline stages.
    """
    trains = method in TRAINING
    found = {
        "pipeline stages": stages,
        f"gradient_accumulation={config.gradient_accumulation}": trains
        and config.gradient_accumulation > 1,
        "activation_checkpointing": trains and config.activation_checkpointing is not None,
        "loss_scale": trains and settings.loss_scale is not None,
        "stochastic_rounding": trains and settings.rounds,
    }
    return [words for words, is_requested in found.items() if is_requested]
