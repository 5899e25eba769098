"""Training of a small model in the processes of `convoy launch`, which writes its results.

convoy launch --num-instances 2 worker.py OUTPUT [--checkpoints FOLDER] [...]
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import convoy
import keras
import numpy as np
from convoy import distributed, keras_bridge
from convoy.engine.step import shard_state
from keras import layers

SEED = 1
SAMPLES, STEPS = 48, 3


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, 6, 6, 2)).astype("float32")
    return x, rng.integers(3, size=SAMPLES)


# Models in stages: what is compiled and run differently from the plain one.
KINDS = {
    "plain": {},
    "zero-bubble": {
        "schedule": "zero-bubble",
        "activation_checkpointing": True,
        "accumulated": 4,
        "clip": 0.1,
    },
    "scaled": {"schedule": "gpipe", "accumulated": 2, "scaled": True, "branched": True},
}


def strategy_for(kind, devices=None, shard=None):
    settings = KINDS.get(kind, {})
    accumulated = settings.get("accumulated", 1)
    scaled = {"loss_scale": "auto", "stochastic_rounding": "on"} if settings.get("scaled") else {}
    return convoy.Strategy(
        devices=devices, gradient_accumulation=accumulated, shard=shard, **scaled
    )


def branched():
    """Return a network with a skip connection over a stage, dropout and an added loss."""
    x = inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, activation="relu", activity_regularizer="l2", name="first")(x)
    skip = x = layers.BatchNormalization()(x)
    x = layers.Dropout(0.3, seed=3, name="second")(x)
    x = layers.Conv2D(4, 3, padding="same", kernel_regularizer="l2")(x)
    x = layers.Add(name="third")([x, skip])
    return keras.Model(inputs, layers.Dense(3, "softmax")(layers.Flatten()(x)))


def make_staged(strategy, kind):
    settings = KINDS[kind]
    with strategy.scope():
        model = branched() if settings.get("branched") else plain()
        model.compile(
            keras.optimizers.Adam(0.01, global_clipnorm=settings.get("clip")),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=settings.get("accumulated", 1),
        )
    convoy.split(model, ["second", "third"] if settings.get("branched") else ["flatten"])
    model.set_pipelining_options(
        schedule=settings.get("schedule", "1f1b"),
        device_mapping=[0, 1, 0] if settings.get("branched") else None,
        activation_checkpointing=settings.get("activation_checkpointing", False),
    )
    return model


def plain():
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(name="flatten"),
            layers.Dense(3, activation="softmax"),
        ]
    )


def make(strategy):
    with strategy.scope():
        model = plain()
        model.compile(
            keras.optimizers.Adam(0.01),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=STEPS,
        )
    return model


def weight_after_one_update(devices, replicas, *, staged):
    """Return the weight that Graphcore's own test compares: 1 - 2 mean(x^2)."""
    found = []
    for accumulated in (1, 16 // replicas):
        strategy = convoy.Strategy(devices=devices, gradient_accumulation=accumulated)
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((1,)),
                    layers.Dense(1, use_bias=False, kernel_initializer="ones"),
                    layers.Activation("linear", name="last"),
                ]
            )
            model.compile(keras.optimizers.SGD(1.0), "mse", steps_per_execution=accumulated)
        if staged:
            convoy.split(model, ["last"])
        x = np.linspace(0, 1, 16, dtype="float32")[:, None]
        model.fit(x, 0 * x, batch_size=16 // replicas // accumulated, verbose=0)
        found.append(float(model.get_weights()[0][0, 0]))
    return found


class Noted(keras.utils.PyDataset):
    """Records which batches are read."""

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


class Holds(keras.callbacks.Callback):
    """Records which weights this process holds during training."""

    def on_train_batch_end(self, batch, logs=None):
        values = keras_bridge.values(self.model.weights)
        self.held = [bool(value.addressable_shards) for value in values]


class Reads(keras.callbacks.Callback):
    """Reads all weights after every device call."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append([float(np.abs(weight).sum()) for weight in self.model.get_weights()])


class Dies(keras.callbacks.Callback):
    """Sends a signal to its own process after some device calls."""

    def __init__(self, who, call, number):
        super().__init__()
        self.mine = who == distributed.index()
        self.calls_left, self.number = call, number

    def on_train_batch_end(self, batch, logs=None):
        self.calls_left -= 1
        if self.mine and self.calls_left == 0:
            os.kill(os.getpid(), self.number)


def train_on_data_set(strategy):
    """Train on a dataset, and return which batches were read."""
    model, dataset = make(strategy), Noted(8 // strategy.replicas)
    model.build((None, 6, 6, 2))
    model.fit(dataset, epochs=2, verbose=0, shuffle=True)
    return {"read": dataset.read, "weights": [weight.tolist() for weight in model.get_weights()]}


def train(strategy, callbacks=(), *, staged=None, devices=None):
    """Train, evaluate and predict, and return the results."""
    x, y = data()
    model = make_staged(strategy, staged) if staged else make(strategy)
    replicas = strategy.replicas // 2 if staged else strategy.replicas
    accumulated = KINDS[staged].get("accumulated", 1) if staged else 1
    batch = 8 // replicas // accumulated
    history = model.fit(x, y, batch_size=batch, epochs=3, verbose=2, callbacks=list(callbacks))
    return {
        "processes": distributed.count(),
        "history": history.history,
        "evaluated": model.evaluate(x[:-5], y[:-5], batch_size=batch, verbose=0),
        "predicted": model.predict(x[:13], batch_size=batch, verbose=0).tolist(),
        "weights": [weight.tolist() for weight in model.get_weights()],
        # Stages are on several devices, where Keras itself cannot call the model.
        "called": [] if staged else np.asarray(model(x[:2])).tolist(),
        "one_weight": weight_after_one_update(devices, replicas, staged=bool(staged)),
    }


def dies_in_save(folder, number):
    """Send a signal to this process when it is about to rename its second checkpoint."""
    renamed = 0

    def heard(event, arguments):
        nonlocal renamed
        if event == "os.rename" and str(arguments[0]).startswith(folder):
            renamed += 1
            if renamed == 2:
                os.kill(os.getpid(), number)

    sys.addaudithook(heard)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--checkpoints")
    parser.add_argument("--die")
    parser.add_argument("--die-in-save", action="store_true")
    parser.add_argument("--staged", choices=KINDS)
    parser.add_argument("--data-set", action="store_true")
    parser.add_argument("--shard", choices=("optimizer", "weights"))
    options = parser.parse_args()
    (options.output / f"pid-{os.getpid()}").write_text(str(os.getpid()))
    # Each process begins with weights and an order of data of its own: the first one's count.
    keras.utils.set_random_seed(SEED + distributed.index())
    holds = Holds()
    callbacks = [holds]
    if options.checkpoints:
        callbacks.append(convoy.Checkpoints(options.checkpoints, every=1))
    mark = options.output / "died"
    if options.die and not mark.exists():
        who, call, name = options.die.split(":")
        callbacks.append(Dies(int(who), int(call), signal.Signals[name]))
        if distributed.index() == int(who):
            mark.touch()
    if options.die_in_save and distributed.is_first() and not mark.exists():
        dies_in_save(options.checkpoints, signal.SIGKILL)
        mark.touch()
    reads = Reads()
    if options.shard:
        shard_state.REPLICATED_ELEMENTS = 0
        callbacks += [reads, keras.callbacks.ModelCheckpoint(options.output / "saved.keras")]
    strategy = strategy_for(options.staged, shard=options.shard)
    if options.data_set:
        outcome = train_on_data_set(strategy)
    else:
        outcome = train(strategy, callbacks, staged=options.staged)
        outcome |= {"read": reads.seen} if options.shard else {}
        (options.output / f"held-{distributed.index()}").write_text(json.dumps(holds.held))
    (options.output / f"{distributed.index()}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
