"""Runs that were recorded once, for all tests."""

import convoy
import keras
import numpy as np
import pytest
from convoy.report.files import read
from keras import layers

BATCH, SAMPLES, HELD_OUT, EPOCHS, CALL = 8, 64, 24, 2, 4


def network():
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(4, 3, padding="same", name="stem"),
            layers.BatchNormalization(name="norm"),
            layers.ReLU(name="rectifier"),
            layers.Conv2D(8, 3, strides=2, padding="same", name="down"),
            layers.GlobalAveragePooling2D(name="pool"),
            layers.Dense(3, name="head"),
        ],
        name="small",
    )
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=CALL,
    )
    return model


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES + HELD_OUT, 12, 12, 3)).astype("float32")
    return x, rng.integers(3, size=len(x)).astype("int32")


def train(strategy, *, folder=None, callbacks=(), split=None):
    """Train a model for two epochs; returns it, its history, and the report if there is one."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = network()
    if split:
        convoy.split(model, [split])
    x, y = data()
    settings = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, "callbacks": list(callbacks)}
    held_out = x[SAMPLES:], y[SAMPLES:]
    if folder is None:
        history = model.fit(x[:SAMPLES], y[:SAMPLES], validation_data=held_out, **settings)
        return model, history.history, None
    with strategy.record(folder):
        history = model.fit(x[:SAMPLES], y[:SAMPLES], validation_data=held_out, **settings)
    return model, history.history, read(folder)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    checkpoints = convoy.Checkpoints(folder / "checkpoints")
    return train(convoy.Strategy(devices=1), folder=folder / "report", callbacks=[checkpoints])


@pytest.fixture(scope="session")
def staged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("staged")
    strategy = convoy.Strategy(devices=2, gradient_accumulation=CALL)
    return train(strategy, folder=folder / "report", split="down")
