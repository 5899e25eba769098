"""Trains a step with the installed Convoy and with stock Keras, and prints both as JSON."""

import ctypes
import json
from pathlib import Path

import convoy
import jax
import keras
import numpy as np
from convoy.native_library import installed_file

generator = np.random.default_rng(0)
X = generator.normal(size=(32, 8, 8, 16)).astype(np.float32)
Y = np.arange(32) % 10


def trained():
    """Return the loss and the weights after a step."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input(X.shape[1:]),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    history = model.fit(X, Y, batch_size=32, shuffle=False, verbose=0).history
    return [history["loss"], *(weight.ravel().tolist() for weight in model.get_weights())]


def convolve(x, w):
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


with convoy.Strategy().scope():
    ours = trained()
kernels = str(convoy.cpu.status())
program = jax.jit(convolve).lower(X, np.ones((3, 3, 16, 16), np.float32)).as_text()
maps = Path("/proc/self/maps").read_text().splitlines()
openmp = next(line.split()[-1] for line in maps if "libgomp" in line)
convoy.cpu.disable()
print(
    json.dumps(
        {
            "package": convoy.__file__,
            "kernels": kernels,
            "program": program,
            "openmp": openmp,
            "decodes_images": bool(
                ctypes.CDLL(str(installed_file("keras-convoy", "libconvoy_jpeg.so")))
            ),
            "ours": ours,
            "stock": trained(),
        }
    )
)
