"""A reader's own training, in stages if a replica has several devices."""

import argparse
import os

import convoy
import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
options = parser.parse_args()

with convoy.Strategy().scope():
    layers = [keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2, name="last")]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("sgd", "mse")
if os.environ.get("CONVOY_DEVICES_PER_REPLICA", "1") != "1":
    convoy.split(model, ["last"])
x = np.arange(64).reshape(16, 4) / 64
model.fit(x, x[:, :2], batch_size=4, epochs=options.epochs)
