"""Gradients that a function of the user's changes, as soon as a micro-batch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from convoy.engine.state import Arrays

GradientMap = Callable[[Any, keras.Variable], Any]
"""Takes a gradient and its variable, and returns what takes the gradient's place."""

_ATTRIBUTE = "_convoy_gradient_map"


def attach(model: keras.Model, function: GradientMap | None) -> None:
    """Have a function change the gradients of a model; to be called before it is compiled."""
    # Not through `setattr`: Keras would take it for a change of the model's state.
    vars(model)[_ATTRIBUTE] = function


def of(model: keras.Model) -> GradientMap | None:
    return vars(model).get(_ATTRIBUTE)


def mapped(model: keras.Model, trainable: Arrays, gradients: Arrays) -> Arrays:
    """Change the gradients of one micro-batch; variables have the values of `trainable`."""
    function = of(model)
    if function is None:
        return gradients
    variables = model.trainable_variables
    with keras.StatelessScope(state_mapping=zip(variables, trainable, strict=True)):
        return [function(g, v) for g, v in zip(gradients, variables, strict=True)]
