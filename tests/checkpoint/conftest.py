"""Runs that are stopped, and go on with another model in another process: or as good as that."""

import contextlib

import convoy
import keras
import ml_dtypes
import numpy as np
import pytest
from convoy.checkpoint import store
from convoy.checkpoint.folder import Folder, Position
from convoy.engine.prepared_model import PreparedModel
from convoy_command import cli
from keras import layers

SAMPLES = 48
FIRST, SECOND = Position(0, 4), Position(1, 0)


class StopError(Exception):
    """Ends a run where a test wants it to end."""


class StopAt(keras.callbacks.Callback):
    """Stops a run before a step of an epoch begins; before validation if there is none."""

    def __init__(self, epoch, step):
        super().__init__()
        self.at = (epoch, step)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) >= self.at:
            raise StopError

    def on_test_begin(self, logs=None):
        if (self.epoch, np.inf) >= self.at:
            raise StopError


def network():
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.Dropout(0.3),
            layers.Dense(3, "softmax"),
        ]
    )


class Subject:
    """One model that is trained again and again from the same start.

    It is compiled once. Between two runs nothing is left of the first: every variable is put back
    to where it was, or for a run that goes on, spoilt; but for the learning rate, which is then the
    one that was compiled.
    """

    def __init__(self, make=network, optimizer=None, steps=2, batch=8, **strategy):
        keras.utils.set_random_seed(3)
        with convoy.Strategy(**({"devices": 1} | strategy)).scope():
            self.model = make()
            self.model.compile(
                optimizer or keras.optimizers.Adam(0.01),
                "sparse_categorical_crossentropy",
                metrics=["accuracy"],
                steps_per_execution=steps,
            )
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(SAMPLES, 6)).astype("float32")
        self.y = rng.integers(0, 3, SAMPLES).astype("int32")
        self.batch = batch
        self.model.optimizer.build(self.model.trainable_variables)
        self.start = [np.array(variable.value) for variable in self.variables]
        # The first run of all builds metrics, for which Keras draws an order that nobody sees.
        self.run(epochs=1)

    @property
    def variables(self):
        model = self.model
        own = [*model.trainable_variables, *model.non_trainable_variables]
        return own + model.optimizer.variables + PreparedModel.of(model).numerics.variables

    def values(self):
        return [np.asarray(variable.value).tobytes() for variable in self.variables]

    def _begin(self, spoil):
        for variable, value in zip(self.variables, self.start, strict=True):
            spoilt = spoil and variable.name != "learning_rate"
            variable.assign(np.ones_like(value) if spoilt else value)
        keras.utils.set_random_seed(99 if spoil else 3)

    def run(self, *callbacks, x=None, spoil=False, validate=True, **settings):
        """Train from the start; return history, epochs and the final values."""
        self._begin(spoil)
        data = (self.x, self.y) if x is None else (x,)
        batch = self.batch if x is None else None
        settings = {"batch_size": batch, "epochs": 3, "verbose": 0} | settings
        if validate:
            settings["validation_data"] = (self.x[:16], self.y[:16])
        history = self.model.fit(*data, callbacks=list(callbacks), **settings)
        return history.history, history.epoch, self.values()

    def stop_and_go_on(self, callbacks, points, **settings):
        """Train with a stop at each point, and go on each time as a new process would."""
        for number, (epoch, step) in enumerate(points):
            with pytest.raises(StopError):
                self.run(*callbacks(), StopAt(epoch, step), spoil=number > 0, **settings)
        return self.run(*callbacks(), spoil=True, **settings)


@pytest.fixture(scope="package")
def plain():
    return Subject()


def fill(folder):
    """Take all the room that a file system has; returns the file that takes it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return filler


@pytest.fixture(scope="package")
def run(plain, tmp_path_factory):
    """A folder with the checkpoints of three epochs."""
    folder = tmp_path_factory.mktemp("run") / "state"
    plain.run(convoy.Checkpoints(folder, keep=9, recipe={"name": "a recipe"}))
    return folder


@pytest.fixture
def call():
    """Run `convoy checkpoint` with some arguments, and return its exit status."""
    return lambda *arguments: cli.main(["checkpoint", *map(str, arguments)])


def content(seed=0):
    rng = np.random.default_rng(seed)
    arrays = {
        "trainable/0/kernel": rng.normal(size=(3, 5)).astype("float32"),
        "trainable/1/half": rng.normal(size=(4,)).astype(ml_dtypes.bfloat16),
        "optimizer/0/iteration": np.array(seed, "int32"),
        "metrics/0/none": np.zeros((0, 2), "float32"),
        "numerics/0/flag": np.array([True, False]),
    }
    state = {"epoch": 1, "logs": {"loss": 0.1 + seed, "bad": float("nan")}, "pair": (1, 2)}
    return store.Checkpoint(arrays, state, {"versions": {}}, '{"model": "é"}')


@pytest.fixture
def folder(tmp_path):
    """Two checkpoints; the second one is the newest."""
    folder = Folder(tmp_path / "run")
    folder.open_for_writing()
    folder.write(FIRST, content(1))
    folder.write(SECOND, content(2))
    yield folder
    folder.close()


def newest_seed(folder):
    return int(folder.newest()[1].arrays["optimizer/0/iteration"])
