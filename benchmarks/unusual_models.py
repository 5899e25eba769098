"""Training speed of models with augmentation layers, and of models with their own `train_step`.

    .venv/bin/python -m benchmarks.unusual_models

Each variant is its own process, so that stock Keras runs without Convoy's CPU kernels. They take
turns, round by round:

- A small CNN that begins with augmentation layers: stock Keras on JAX and Convoy. Keras marks some
  of these layers as not compilable, and runs a model that has them operation by operation.
  Expected: at least 3x faster than stock Keras.
- A residual network whose class overrides `train_step`: stock Keras, Convoy on one device, and
  Convoy on two replicas, where XLA's partitioner divides the step. The same network without the
  override, on two replicas, shows what the partitioner costs.

The table gives the time of a step, and the ratio to that of stock Keras: the median over rounds
and, in brackets, the smallest and the largest. The last column is the same ratio of CPU time, which
other programs on the machine affect less.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import keras

SHAPE = (32, 32, 3)
BATCH = 64


class Times(NamedTuple):
    """Seconds of a step: by the clock, and of all cores together."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Variant:
    """A model and the library that trains it.

    Attributes:
        name: its name in the table.
        model: a key of `MODELS`.
        devices: number of Convoy's devices; 0 for stock Keras.
    """

    name: str
    model: str
    devices: int = 0


COMPARISONS = {
    "RandomFlip, RandomContrast": [
        Variant("stock Keras", "colours"),
        Variant("Convoy", "colours", 1),
    ],
    "RandomFlip, RandomRotation, RandomZoom, RandomTranslation": [
        Variant("stock Keras", "geometry"),
        Variant("Convoy", "geometry", 1),
    ],
    "RandomFlip, RandomCrop": [
        Variant("stock Keras", "crop"),
        Variant("Convoy", "crop", 1),
    ],
    "own train_step, ResNet-8": [
        Variant("stock Keras", "own step"),
        Variant("Convoy", "own step", 1),
        Variant("Convoy, two replicas", "own step", 2),
        Variant("Convoy, two replicas, no override", "resnet8", 2),
    ],
}


def make_network(name: str) -> keras.Model:
    import keras
    from keras import layers

    class OwnStep(keras.Model):
        """A model whose step is Keras's own with one more log."""

        def train_step(self, state: tuple, data: tuple) -> tuple:
            logs, state = super().train_step(state, data)
            return logs | {"largest": keras.ops.max(data[0])}, state

    def convolution(x: keras.KerasTensor, filters: int, strides: int = 1) -> keras.KerasTensor:
        x = layers.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    augmentations = {
        "colours": lambda: [layers.RandomContrast(0.2)],
        "geometry": lambda: [
            layers.RandomRotation(0.1),
            layers.RandomZoom(0.1),
            layers.RandomTranslation(0.1, 0.1),
        ],
        "crop": lambda: [layers.RandomCrop(28, 28)],
    }
    inputs = x = keras.Input(SHAPE)
    if name in augmentations:
        for layer in (layers.RandomFlip("horizontal"), *augmentations[name]()):
            x = layer(x)
    x = layers.ReLU()(convolution(x, 16))
    for filters in (16, 32, 64):
        strides = 1 if filters == 16 else 2
        shortcut = x if strides == 1 else convolution(x, filters, strides)
        inner = layers.ReLU()(convolution(x, filters, strides))
        x = layers.ReLU()(layers.Add()([convolution(inner, filters), shortcut]))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return (OwnStep if name == "own step" else keras.Model)(inputs, outputs)


def serve(variant: Variant, steps: int, connection: Connection) -> None:
    """Train one variant for some steps at every request, and answer with the times of a step."""
    os.environ["KERAS_BACKEND"] = "jax"
    scope = contextlib.nullcontext()
    if variant.devices:
        import convoy

        scope = convoy.Strategy(variant.devices, batch="global").scope()
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    with scope:
        model = make_network(variant.model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, steps_per_execution=10)
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 255, (steps * BATCH, *SHAPE)).astype("float32")
    y = rng.integers(0, 10, steps * BATCH)
    while True:
        wall, cpu = time.perf_counter(), time.process_time()
        model.fit(x, y, batch_size=BATCH, verbose=0)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        connection.send(Times(wall / steps, cpu / steps))
        if not connection.recv():
            return


def measure(variants: list[Variant], steps: int, rounds: int) -> dict[str, list[Times]]:
    """Return the times of every round after the one in which programs are compiled."""
    context = multiprocessing.get_context("spawn")
    connections, processes = {}, []
    times: dict[str, list[Times]] = {variant.name: [] for variant in variants}
    for variant in variants:
        connections[variant.name], end = context.Pipe()
        processes.append(context.Process(target=serve, args=(variant, steps, end)))
        processes[-1].start()
        connections[variant.name].recv()
    for _ in range(rounds):
        for name, connection in connections.items():
            connection.send(True)
            times[name].append(connection.recv())
    for connection, process in zip(connections.values(), processes, strict=True):
        connection.send(False)
        process.join()
    return times


def ratio(stock: list[float], own: list[float]) -> str:
    ratios = [theirs / ours for theirs, ours in zip(stock, own, strict=True)]
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50, help="steps in a turn")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for title, variants in COMPARISONS.items():
        print(title)
        times = measure(variants, options.steps, options.rounds)
        stock = times[variants[0].name]
        for name, own in times.items():
            milliseconds = statistics.median(each.wall for each in own) * 1e3
            by_clock = ratio([each.wall for each in stock], [each.wall for each in own])
            by_cpu = ratio([each.cpu for each in stock], [each.cpu for each in own])
            print(f"  {name:<36} {milliseconds:8.1f} ms  {by_clock:>22}  {by_cpu:>22}", flush=True)


if __name__ == "__main__":
    main()
