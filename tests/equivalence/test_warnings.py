"""Keras's warnings are given by the engine too, and not more often than by stock Keras."""

import re
import warnings
from collections import Counter

import keras
import pytest
from keras import layers

from . import models
from .side_by_side import IN_EVERY_STRATEGY, assert_equivalent


def compiled(model, steps):
    model.compile("sgd", "mse", steps_per_execution=steps)
    return model


def dict_of_inputs(steps):
    left, right = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    return compiled(keras.Model({"a": left, "b": right}, layers.Add()([left, right])), steps)


class WithoutMask(layers.Layer):
    """A layer that does not say what it does with a mask."""

    def call(self, x):
        return keras.ops.mean(x, axis=1)


class Masked(keras.Model):
    """A model that is traced when it trains; a functional model is when it is made."""

    def __init__(self):
        super().__init__()
        self.parts = [layers.Masking(), WithoutMask(), layers.Dense(1)]

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def masked(steps):
    return compiled(Masked(), steps)


def arrays(x, y):
    return {"x": x, "y": y, "batch_size": 30}


def list_of_arrays(x, y):
    return arrays([x, x], x)


def columns(x, y):
    return arrays(x[:, :, None], y)


def short_generator(x, y):
    batches = ((x[start : start + 30], y[start : start + 30]) for start in range(0, 150, 30))
    return {"x": batches, "steps_per_epoch": 8}


CASES = {
    "structure of inputs": (dict_of_inputs, list_of_arrays, "The structure of `inputs` doesn't"),
    "end of data": (models.regressor, short_generator, "Your input ran out of data"),
    "shuffle": (models.regressor, short_generator, "`shuffle=True` was passed, but will be"),
}


@IN_EVERY_STRATEGY
@pytest.mark.parametrize("name", CASES)
def test_a_warning_of_keras(table, name, strategy):
    make, data, message = CASES[name]
    found = []

    def run(model):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = model.fit(**data(*table[:2]), verbose=0).history
        # Replicas receive a shard of the batch.
        messages = [re.sub(r"shape=\(\d+", "shape=(n", str(item.message)) for item in caught]
        found.append(Counter(text for text in messages if "copy keyword" not in text))
        return history

    assert_equivalent(make, run, **strategy)
    stock, convoy = found
    assert any(message in text for text in stock)
    assert set(convoy) == set(stock)
    assert not convoy - stock


@IN_EVERY_STRATEGY
def test_a_warning_about_a_mask(table, strategy):
    # How often it is given depends on what the process has traced before, in stock Keras too.
    found = []

    def run(model):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = model.fit(**columns(*table[:2]), verbose=0).history
        found.append({str(item.message) for item in caught if "mask" in str(item.message)})
        return history

    assert_equivalent(masked, run, **strategy)
    stock, convoy = found
    assert any("does not support masking" in text for text in stock)
    assert convoy == stock
