"""The runs behind the fixtures: models, data and settings, by public names only."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import convoy
import keras
import numpy as np
from convoy import ipu
from keras import layers

HERE = Path(__file__).resolve().parent
FIXTURES = HERE / "fixtures"
CLASSES = tuple("abc")


class StopError(Exception):
    """Ends a run in the middle of its second epoch."""


class StopInSecondEpoch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) >= (1, 5):
            raise StopError


def images(count=24, size=6):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, size, size, 1)).astype("float32")
    return x, rng.integers(0, len(CLASSES), count).astype("int32")


def image_bytes(count=4, size=8):
    return np.random.default_rng(2).integers(0, 256, (count, size, size, 1)).astype("uint8")


def table(count=16):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(count, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def network():
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(3, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(len(CLASSES), "softmax", name="head", dtype="float32"),
        ]
    )


def momentum():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def wrapped():
    inner = convoy.optimizers.Regularized(momentum(), l2=1e-3, weight_decay=1e-3, clip=0.1)
    return convoy.optimizers.Lookahead(inner, updates=12, every=2)


def lars():
    rate = keras.optimizers.schedules.CosineDecay(2.0, 20)
    return convoy.optimizers.LARS(rate, weight_decay=1e-3, eeta=0.01)


# Checkpoints --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A run of `convoy.Checkpoints`.

    Attributes:
        strategy: arguments of `convoy.Strategy`.
        optimizer: makes the optimizer.
        batch: samples of a micro-batch.
        staged: whether the model is split into two pipeline stages.
        tolerance: relative and absolute; by default that of float32.
    """

    strategy: dict[str, Any] = field(default_factory=dict)
    optimizer: Any = momentum
    batch: int = 4
    staged: bool = False
    tolerance: float | None = None


AUTOMATIC = convoy.AutomaticLossScale(initial=8.0, period=3)
VARIANTS = {
    "plain": Variant(),
    "mixed": Variant({"precision": "16.32", "loss_scale": AUTOMATIC}, tolerance=2.0**-10),
    "half": Variant(
        {"precision": "bf16.16", "loss_scale": 4.0, "stochastic_rounding": "on"}, tolerance=2.0**-7
    ),
    "staged": Variant({"devices": 2, "gradient_accumulation": 2}, batch=2, staged=True),
    "replicas": Variant({"devices": 2, "shard_optimizer_state": True}, batch=2),
    "lars": Variant(optimizer=lars),
    "wrapped": Variant(optimizer=wrapped),
}


def make(variant):
    keras.utils.set_random_seed(3)
    with convoy.Strategy(**({"devices": 1} | variant.strategy)).scope():
        model = network()
        model.compile(variant.optimizer(), "sparse_categorical_crossentropy", metrics=["accuracy"])
    if variant.staged:
        convoy.split(model, ["head"])
    return model


def train(model, variant, *callbacks):
    """Train for two epochs; return the history, predictions and the optimizer's variables."""
    x, y = images()
    patience = keras.callbacks.EarlyStopping(monitor="val_loss", patience=5)
    history = model.fit(
        x,
        y,
        batch_size=variant.batch,
        epochs=2,
        validation_data=(x[:8], y[:8]),
        callbacks=[patience, *callbacks],
        verbose=0,
    ).history
    return outcome(history, model.predict(x[:8], verbose=0), model)


def outcome(history, predicted, model=None):
    """Return arrays to be compared: the history by name, predictions and iterations."""
    found = {f"history {name}": np.array(values, "float64") for name, values in history.items()}
    found["predicted"] = np.array(predicted)
    if model is not None:
        found["iterations"] = np.array(model.optimizer.iterations)
        for index, variable in enumerate(model.optimizer.variables[1:]):
            found[f"optimizer {index}"] = np.array(variable.value).astype("float32")
    return found


# Keras files --------------------------------------------------------------------------------


def load(path):
    """Load a model. Keras does not save the state of seed generators, so they begin anew."""
    keras.utils.set_random_seed(9)
    return keras.saving.load_model(path)


def train_on(model):
    """Train a loaded model for an epoch on the engine."""
    x, y = images()
    convoy.prepare(model, convoy.Strategy(devices=1))
    history = model.fit(x, y, batch_size=4, shuffle=False, verbose=0).history
    return outcome(history, model.predict(x[:8], verbose=0))


STEPS = range(0, 60, 3)


def rates(model):
    """Return the learning rate at some steps."""
    found = []
    for step in STEPS:
        model.optimizer.iterations.assign(step)
        found.append(float(model.optimizer.learning_rate))
    return np.array(found)


# `convoy.ipu` -------------------------------------------------------------------------------


def ipu_strategy():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    return ipu.ipu_strategy.IPUStrategy()


def train_ipu(model):
    x, y = table()
    history = model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history
    stages = [assigned.pipeline_stage for assigned in model.get_pipeline_stage_assignment()]
    stages = [-1 if stage is None else stage for stage in stages]
    found = outcome(history, model.predict(x, batch_size=2, verbose=0), model)
    return found | {"stages": np.array(stages)}


# Estimators ---------------------------------------------------------------------------------


def regression(features, labels, mode):
    x = layers.Dense(3, activation="tanh")(features)
    return convoy.estimator.EstimatorSpec(
        mode,
        layers.Dense(1)(x),
        "mse",
        momentum(),
        metrics={} if mode == "train" else {"error": keras.metrics.MeanAbsoluteError()},
    )


def _first(features, labels):
    return layers.Dense(3, activation="tanh")(features), labels


def _second(x, labels):
    return keras.ops.mean(keras.ops.square(labels - layers.Dense(1)(x)))


def staged_regression(mode):
    return convoy.estimator.PipelineEstimatorSpec(
        mode, [_first, _second], optimizer=momentum(), gradient_accumulation=2
    )


def estimator(kind, folder):
    config = convoy.estimator.RunConfig(
        seed=3, strategy=convoy.Strategy(devices=2 if kind == "staged" else 1), keep=1
    )
    if kind == "staged":
        return convoy.estimator.PipelineEstimator(staged_regression, folder, config)
    return convoy.estimator.Estimator(regression, folder, config)


def train_estimator(trained):
    """Train for four steps; return what the newest checkpoint holds."""
    x, y = table()
    trained.train(lambda: convoy.estimator.ArrayInput(x, y, batch_size=2, passes=None), steps=4)
    return estimated(trained)


def estimated(trained):
    """Return the variables of the newest checkpoint, by their position, and results."""
    names = trained.get_variable_names()
    found = {str(i): trained.get_variable_value(name) for i, name in enumerate(names)}
    if not isinstance(trained, convoy.estimator.PipelineEstimator):
        x, y = table()
        results = trained.evaluate(lambda: (x, y))
        found |= {name: np.array(value) for name, value in results.items()}
        found["predicted"] = np.array(list(trained.predict(lambda: x)))
    return found


# The command --------------------------------------------------------------------------------

TRAIN = [
    *("--model-name", "small_network:make", "--dataset", "digits", "--precision", "32.32"),
    *("--micro-batch-size", "16", "--gradient-accumulation-count", "2"),
    *("--weight-updates-per-epoch", "6", "--num-epochs", "2", "--seed", "5"),
    *(
        "--optimizer",
        "lars",
        "--optimizer-params",
        '{"momentum": 0.9, "weight_decay": 0.0, "eeta": 0.01, "epsilon": 0.0}',
    ),
    *("--lr-schedule", "cosine"),
    *("--lr-schedule-params", '{"initial_learning_rate": 0.02, "epochs_to_total_decay": 3}'),
    *("--lr-warmup-params", '{"warmup_mode": "shift", "warmup_epochs": 0.5}'),
    *("--lookahead", "2", "--l2-regularization", "0.001", "--label-smoothing", "0.1"),
    *("--eight-bit-transfer", "--accelerator-side-preprocess"),
]


def environment():
    surroundings = {"CONVOY_COMPILATION_CACHE": "0", "CONVOY_DEVICES": "1"}
    return os.environ | surroundings


def command(*words):
    """Run `convoy` beside `small_network.py`; return its standard output."""
    done = subprocess.run(
        [Path(sys.executable).parent / "convoy", *map(str, words)],
        cwd=HERE,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
