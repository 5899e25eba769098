"""Overhead of recording a run: ResNet-8 with CIFAR-10's shapes, recorded and not recorded.

    .venv/bin/python -m benchmarks.recording

Two equal models train on the same data, one under a strategy that records. They take turns, epoch
by epoch, and the order alternates. The ratio compares the two epochs of a round. A third model,
under a strategy that recorded before and has stopped, shows the overhead when recording is off.

The same comparison with a network that computes next to nothing follows: epochs of two lengths
give the overhead per step and per call of `fit`. There, noise does not hide small differences.
Expected: recording costs under 2 %, and nothing when it is off.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import convoy
import keras
import numpy as np
from benchmarks.peers.keras_models import resnet8

BATCH = 64


def one_layer():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(10, activation="softmax")])


def make_model(strategy, steps_per_execution, network=resnet8):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = network()
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )
    return model


def time_epoch(model, x, y):
    start = time.perf_counter()
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
    return time.perf_counter() - start


def ratios(times, name):
    return [own / plain for own, plain in zip(times[name], times["plain"], strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=64, help="steps in an epoch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps-per-execution", type=int, nargs="+", default=[1, 16])
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.steps * BATCH, 32, 32, 3)).astype("float32")
    y = rng.integers(10, size=len(x))
    for steps in options.steps_per_execution:
        with tempfile.TemporaryDirectory() as folder:
            compare(x, y, steps, options, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        show_what_is_added(Path(folder))


def compare(x, y, steps, options, folder):
    strategies = {name: convoy.Strategy(devices=1) for name in ("plain", "recorded", "stopped")}
    models = {name: make_model(strategy, steps) for name, strategy in strategies.items()}
    strategies["stopped"].record(folder / "stopped")
    time_epoch(models["stopped"], x, y)
    strategies["stopped"].observer.close()
    recording = strategies["recorded"].record(folder / "recorded")
    for model in models.values():
        time_epoch(model, x, y)
    times = {name: [] for name in models}
    names = list(models)
    for number in range(options.rounds):
        for name in names[number % 3 :] + names[: number % 3]:
            times[name].append(time_epoch(models[name], x, y))
    recording.close()
    size = sum(file.stat().st_size for file in (folder / "recorded").rglob("*.json"))
    plain = statistics.median(times["plain"]) / options.steps
    print(
        f"steps_per_execution={steps}: a step takes {1000 * plain:.1f} ms; {options.rounds} rounds "
        f"of {options.steps} steps; the report has {size / 1024:.0f} KiB"
    )
    for name, text in (("recorded", "recording"), ("stopped", "recording, off again")):
        found = [100 * (ratio - 1) for ratio in ratios(times, name)]
        low, high = statistics.quantiles(found, n=4)[::2]
        print(
            f"  {text:<22} {statistics.median(found):+6.2f} %  (half of the rounds {low:+.2f} to "
            f"{high:+.2f}, all {min(found):+.2f} to {max(found):+.2f})"
        )


def show_what_is_added(folder, rounds=40):
    """Print what recording adds to a step and to a call of `fit`: a line through two lengths."""
    lengths, strategy = (16, 256), convoy.Strategy(devices=1)
    models = {"plain": make_model(convoy.Strategy(devices=1), 1, one_layer)}
    models["recorded"] = make_model(strategy, 1, one_layer)
    added = []
    with strategy.record(folder):
        for steps in lengths:
            x, y = np.zeros((steps * BATCH, 4), "float32"), np.zeros(steps * BATCH, int)
            times = {name: [] for name in models}
            for _ in range(rounds + 1):  # the first compiles
                for name, model in models.items():
                    times[name].append(time_epoch(model, x, y))
            plain, recorded = (statistics.median(values[1:]) for values in times.values())
            added.append(recorded - plain)
    a_step = (added[1] - added[0]) / (lengths[1] - lengths[0])
    a_fit = added[0] - lengths[0] * a_step
    print(f"Added to a step: {1e6 * a_step:.0f} us; to a call of fit: {1e3 * a_fit:.1f} ms")


if __name__ == "__main__":
    main()
