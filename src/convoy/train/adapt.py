"""Layers whose weights are found in the data before training, by Keras's method `adapt`."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
from convoy import keras_bridge
from keras import layers


def adapt_layers(model: keras.Model, find_inputs: Callable[[], np.ndarray]) -> None:
    """Have every layer that has a method `adapt` see what will come to it.

    Keras's own normalisation is left as it was made: applications have one, whose statistics come
    with their weights.

    Args:
        model: of one input, with layers in a graph; any other is left alone.
        find_inputs: returns some samples in the form that the model takes, if they are needed.
    """
    calls = keras_bridge.graph_calls(model, into_nested=True) or []
    places = [place for place, call in enumerate(calls) if _adapts(call.operation)]
    if not places:
        return
    tensors = keras_bridge.graph_input_tensors(model, find_inputs())
    run = keras_bridge.with_training(False)
    for place, call in enumerate(calls[: places[-1] + 1]):
        if place in places:
            call.operation.adapt(tensors[call.inputs[0]])
        call.run(tensors, run)


def _adapts(operation: keras.Operation) -> bool:
    return hasattr(operation, "adapt") and not isinstance(operation, layers.Normalization)
