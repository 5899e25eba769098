"""Trains in processes that are to be killed; started by `kill.py`.

Reads lines `variant folder` and runs each in a process of its own, which is forked: importing takes
longer than training. A process writes a line whenever it gets somewhere (`tick ...`), and its
outcome at the end.
"""

import csv
import hashlib
import json
import os
import sys
import traceback
from pathlib import Path

import convoy
import jax
import keras
import numpy as np
from convoy.checkpoint import store
from convoy.checkpoint.folder import Folder
from convoy.cli.train import main as convoy_train
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.step import shard_state
from convoy.train import progress_callback
from keras import layers

SAMPLES, EPOCHS = 96, 3

STRATEGIES = {
    "plain": {"devices": 1},
    "streamed": {"devices": 1, "data_budget": 0},
    "workers": {"devices": 1},
    "replicated": {"devices": 2},
    "sharded": {"devices": 2, "shard_optimizer_state": True},
    "sharded-weights": {"devices": 2, "shard": "weights"},
    "accumulated": {"devices": 1, "gradient_accumulation": 2},
    "pipelined": {"devices": 2, "gradient_accumulation": 2},
    "half": {
        "devices": 1,
        "precision": "16.16",
        "loss_scale": convoy.AutomaticLossScale(initial=64, period=3),
        "stochastic_rounding": "on",
    },
    "augmented": {"devices": 1},
}
APPLICATION = "application"
VARIANTS = (*STRATEGIES, APPLICATION)


class Order(keras.metrics.Metric):
    """A number that says which samples came in which order: exact, and another one if any moved."""

    def __init__(self, name="order"):
        super().__init__(name=name)
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = keras.ops.reshape(keras.ops.cast(y_true[:, 0], "float32"), (-1,))
        places = keras.ops.arange(1, labels.shape[0] + 1, dtype="float32")
        mixed = self.value * 31 + keras.ops.sum(labels * places)
        self.value.assign(keras.ops.floor(mixed % 65521))

    def result(self):
        return keras.ops.convert_to_tensor(self.value)


class SampleLoss(keras.losses.Loss):
    """Cross-entropy of the second column; the first one is the sample's number, for `Order`."""

    def call(self, y_true, y_pred):
        return keras.ops.sparse_categorical_crossentropy(y_true[:, 1], y_pred)


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__(workers=2, use_multiprocessing=False)
        self.x, self.y = x, y

    @property
    def num_batches(self):
        return SAMPLES // 8

    def __getitem__(self, index):
        rows = slice(8 * index, 8 * index + 8)
        return self.x[rows], self.y[rows]


class Ticks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        tick("call")

    def on_test_batch_end(self, batch, logs=None):
        tick("validation")


def tick(what):
    os.write(1, f"tick {what}\n".encode())


def make(variant):
    augmentation = [layers.RandomFlip(), layers.RandomBrightness(0.5, value_range=(0, 1))]
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            *(augmentation if variant == "augmented" else []),
            layers.Conv2D(4, 3, use_bias=False, name="conv"),
            *([] if variant == "pipelined" else [layers.BatchNormalization()]),
            layers.Activation("relu"),
            layers.Dropout(0.2),
            layers.GlobalAveragePooling2D(name="pool"),
            layers.Dense(3, "softmax", dtype="float32"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        SampleLoss(),
        metrics=[Order()] if STRATEGIES[variant]["devices"] == 1 else [],
        steps_per_execution=2,
    )
    return model


def train(variant, folder):
    shard_state.REPLICATED_ELEMENTS = 0  # of this small network too
    keras.utils.set_random_seed(5)
    with convoy.Strategy(**STRATEGIES[variant]).scope():
        model = make(variant)
    if variant == "pipelined":
        convoy.split(model, ["pool"])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, 8, 8, 1)).astype("float32")
    y = np.stack([np.arange(SAMPLES), rng.integers(0, 3, SAMPLES)], axis=1).astype("int32")
    data = (Batches(x, y),) if variant == "workers" else (x, y)
    history = model.fit(
        *data,
        batch_size=None if variant == "workers" else 8 // model_replicas(variant),
        epochs=EPOCHS,
        verbose=0,
        validation_data=(x[:16], y[:16]),
        callbacks=[convoy.Checkpoints(folder, every=4), Ticks()],
    )
    return outcome(model, history, folder)


def small(shape, classes):
    """The model of the application, by the name `__main__:small`."""
    layer = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.GlobalAveragePooling2D()]
    return keras.Sequential([keras.Input(shape), *layer, layers.Dense(classes, "softmax")])


def run_application(folder):
    """Train by `convoy train`, with images that are changed at random on the host."""
    words = ["--model-name", "__main__:small", "--dataset", "digits", "--seed", "3", "--resume"]
    words += ["--micro-batch-size", "8", "--weight-updates-per-epoch", "6", "--num-epochs", "3"]
    words += ["--logs-per-epoch", "3", "--state-every", "2", "--precision", "32.32"]
    words += ["--mixup", "0.2", "--rand-augment", "0.5", "--optimizer-params", "{momentum: 0.9}"]
    status = convoy_train([*words, "--output-dir", str(folder)])
    if status:
        sys.exit(status)
    with (Path(folder) / "metrics.csv").open() as file:
        rows = [
            {name: row[name] for name in row if name not in ("throughput", "compilation")}
            for row in csv.DictReader(file)
        ]
    saved = sorted(path.name for path in (Path(folder) / "checkpoints").iterdir())
    return {"rows": rows, "checkpoints": saved, "checkpoint": newest_hash(Path(folder) / "state")}


def model_replicas(variant):
    return 1 if variant == "pipelined" else STRATEGIES[variant]["devices"]


def outcome(model, history, folder):
    """Return all that a run has come to, as far as bits tell."""
    variables = [
        *model.variables,
        *model.optimizer.variables,
        *PreparedModel.of(model).numerics.variables,
    ]
    digest = hashlib.sha256()
    for variable in variables:
        digest.update(np.asarray(variable.value).tobytes())
    return {
        "history": history.history,
        "epochs": history.epoch,
        "values": digest.hexdigest(),
        "checkpoint": newest_hash(folder),
    }


def newest_hash(folder):
    found = Folder(folder)
    return store.state_hash(store.read_manifest(found.at(found.positions()[-1])))


def watch_calls():
    """Tick after each device call of the application."""
    show = progress_callback.ProgressCallback._show

    def ticking_show(self, record):
        show(self, record)
        tick("call")

    progress_callback.ProgressCallback._show = ticking_show


def watch_writing():
    """Tick at the points of a save at which a kill leaves different things behind."""
    fsync, rename = os.fsync, Path.rename

    def ticking_fsync(descriptor):
        tick("sync")
        fsync(descriptor)

    def ticking_rename(self, target):
        tick("rename")
        return rename(self, target)

    os.fsync, Path.rename = ticking_fsync, ticking_rename


def child(variant, folder):
    try:
        watch_writing()
        watch_calls()
        run = run_application(folder) if variant == APPLICATION else train(variant, folder)
        result = json.dumps(run)
        os.write(1, f"result {result}\n".encode())
        os._exit(0)
    except SystemExit as error:
        os._exit(error.code)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def serve():
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    for line in sys.stdin:
        variant, folder = line.rstrip("\n").split(" ", 1)
        started = os.fork()
        if not started:
            child(variant, folder)
        os.write(1, f"pid {started}\n".encode())
        _, status = os.waitpid(started, 0)
        os.write(1, f"ended {os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    serve()
