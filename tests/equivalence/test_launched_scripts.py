"""Scripts without Convoy train on one device and on two replicas as they do by themselves."""

import json
import os
import runpy
import subprocess
import sys

import pytest
from tests.launch.running import SOURCE, launch

from .side_by_side import assert_same

pytestmark = [pytest.mark.slow, pytest.mark.integration]

SCRIPT = """
import json
import sys

import keras
import numpy as np
from keras import layers

file, rate = sys.argv[1], float(sys.argv[2])
keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)
x = rng.normal(size=(60, 8, 8, 2)).astype("float32")
y = (x[:, :4].mean(axis=(1, 2, 3)) > 0).astype("int32")


def network():
    inputs = keras.Input((8, 8, 2))
    hidden = layers.Conv2D(4, 3, use_bias=False)(inputs)
    hidden = layers.Dropout(rate)(layers.ReLU()(layers.BatchNormalization()(hidden)))
    pooled = layers.LayerNormalization()(layers.GlobalAveragePooling2D()(hidden))
    return keras.Model(inputs, layers.Dense(2, activation="softmax")(pooled))


model = network()
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
calls = []
callbacks = [
    keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: calls.append([batch, dict(logs)]),
        on_epoch_end=lambda epoch, logs: calls.append([epoch, dict(logs)]),
    ),
    keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=1.0),
]
settings = {"batch_size": 12, "verbose": 0}
history = model.fit(x, y, epochs=3, validation_split=0.2, callbacks=callbacks, **settings).history
found = {
    "history": history,
    "calls": calls,
    "evaluated": model.evaluate(x, y, **settings),
    "predicted": model.predict(x, **settings).tolist(),
    "weights": [weight.tolist() for weight in model.get_weights()],
    "engine": hasattr(model, "set_gradient_accumulation"),
}
with open(file, "w") as opened:
    json.dump(found, opened, default=float)
"""
STRATEGY = "convoy.Strategy(batch='global', batch_norm_group=2)"
IN_A_SCOPE = "import convoy\n" + SCRIPT.replace(
    "model = network()", f"with {STRATEGY}.scope():\n    model = network()"
)


def by_itself(script, file, rate, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(script), str(file), str(rate)])
    runpy.run_path(str(script))


def launched(script, file, rate, replicas):
    ended = launch("--replicas", replicas, script, file, rate)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def with_devices(script, file, rate):
    environment = {name: value for name, value in os.environ.items() if "XLA_" not in name}
    subprocess.run(
        [sys.executable, script, file, str(rate)],
        env=environment | {"CONVOY_DEVICES": "2", "PYTHONPATH": str(SOURCE)},
        check=True,
    )


@pytest.mark.parametrize(
    ("way", "rate"),
    [
        ("one replica", 0.3),
        # Replicas draw random numbers of their own, so dropout is off.
        ("two replicas", 0.0),
        ("CONVOY_DEVICES", 0.0),
    ],
)
def test_a_script_gives_the_results_of_stock_keras(tmp_path, monkeypatch, way, rate):
    script, expected, actual = (tmp_path / name for name in ("script.py", "stock", "convoy"))
    script.write_text(SCRIPT)
    by_itself(script, expected, rate, monkeypatch)
    if way == "CONVOY_DEVICES":
        script.write_text(IN_A_SCOPE)
        with_devices(script, actual, rate)
    else:
        launched(script, actual, rate, 1 if way == "one replica" else 2)
    wanted, found = (json.loads(file.read_text()) for file in (expected, actual))
    assert (wanted.pop("engine"), found.pop("engine")) == (False, True)
    assert_same(found, wanted)
