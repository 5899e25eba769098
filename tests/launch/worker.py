"""Trains a small model in the processes that `convoy launch` starts, and tells what came out.

convoy launch --num-instances 2 worker.py OUTPUT [--checkpoints FOLDER] [...]
"""

import argparse
import json
import os
import signal
from pathlib import Path

import convoy
import keras
import numpy as np
from convoy import processes
from keras import layers

SEED = 1
SAMPLES, STEPS = 48, 3


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, 6, 6, 2)).astype("float32")
    return x, rng.integers(3, size=SAMPLES)


def make(strategy, *, staged=False):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6, 6, 2)),
                layers.Conv2D(4, 3, activation="relu"),
                layers.BatchNormalization(),
                layers.Flatten(),
                layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.01),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=1 if staged else STEPS,
        )
    if staged:
        model.set_pipeline_stage_assignment([0, 0, 1, 1])
    return model


class Noted(keras.utils.PyDataset):
    """Notes which batches are read."""

    def __init__(self, batch):
        super().__init__(workers=0)
        self.x, self.y = data()
        self.batch, self.read = batch, []

    @property
    def num_batches(self):
        return SAMPLES // self.batch

    def __getitem__(self, index):
        self.read.append(index)
        rows = slice(index * self.batch, (index + 1) * self.batch)
        return self.x[rows], self.y[rows]


class Dies(keras.callbacks.Callback):
    """Sends a signal to its own process after some device calls."""

    def __init__(self, who, call, number):
        super().__init__()
        self.mine = who == processes.index()
        self.calls_left, self.number = call, number

    def on_train_batch_end(self, batch, logs=None):
        self.calls_left -= 1
        if self.mine and self.calls_left == 0:
            os.kill(os.getpid(), self.number)


def train_on_data_set(strategy):
    """Train on batches that are read one by one, and tell which were."""
    model, dataset = make(strategy), Noted(8 // strategy.replicas)
    model.build((None, 6, 6, 2))
    model.fit(dataset, epochs=2, verbose=0, shuffle=True)
    return {"read": dataset.read, "weights": [weight.tolist() for weight in model.get_weights()]}


def train(strategy, callbacks=(), *, staged=False):
    """Train, evaluate and predict, and return all of it."""
    x, y = data()
    model = make(strategy, staged=staged)
    batch = 8 // (strategy.replicas // 2 if staged else strategy.replicas)
    history = model.fit(x, y, batch_size=batch, epochs=3, verbose=2, callbacks=list(callbacks))
    return {
        "processes": processes.count(),
        "history": history.history,
        "evaluated": model.evaluate(x[:-5], y[:-5], batch_size=batch, verbose=0),
        "predicted": model.predict(x[:13], batch_size=batch, verbose=0).tolist(),
        "weights": [weight.tolist() for weight in model.get_weights()],
        # Stages are on several devices, where Keras itself cannot call the model.
        "called": [] if staged else np.asarray(model(x[:2])).tolist(),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--checkpoints")
    parser.add_argument("--die")
    parser.add_argument("--staged", action="store_true")
    parser.add_argument("--data-set", action="store_true")
    options = parser.parse_args()
    # Each process begins with weights and an order of data of its own: the first one's count.
    keras.utils.set_random_seed(SEED + processes.index())
    callbacks = []
    if options.checkpoints:
        callbacks.append(convoy.Checkpoints(options.checkpoints, every=1))
    mark = options.output / "died"
    if options.die and not mark.exists():
        who, call, name = options.die.split(":")
        callbacks.append(Dies(int(who), int(call), signal.Signals[name]))
        if processes.index() == int(who):
            mark.touch()
    strategy = convoy.Strategy()
    if options.data_set:
        outcome = train_on_data_set(strategy)
    else:
        outcome = train(strategy, callbacks, staged=options.staged)
    (options.output / f"{processes.index()}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
