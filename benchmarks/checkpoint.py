"""Time that training stops for a checkpoint of ResNet-50 with momentum.

Compares, in turns in one run of `fit`, a save by `convoy.Checkpoints`, which copies the state and
writes it while training continues, with a save that blocks. Expected: under 5 % of the time of the
blocking save. Also measures the device call after a save, to show how much writing slows down
training. Five minutes on two cores:

    python -m benchmarks.checkpoint
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import convoy
import jax
import keras
import numpy as np
from convoy import keras_bridge
from convoy.checkpoint.folder import Folder


class Timed(convoy.Checkpoints):
    """Saves after every other device call, in turns with and without waiting for the disk."""

    def __init__(self, folder):
        super().__init__(folder, every="1h", keep=2)
        self.calls = 0
        self.stands = {"background": [], "waited for": []}
        self.after = {"background": [], "waited for": [], "none": []}
        self.last = "none"
        self.began = time.perf_counter()

    def save_if_due(self, progress):
        jax.block_until_ready(keras_bridge.values(progress.model.trainable_variables))
        if progress.step:  # and not the end of the epoch, which no device call comes before
            self.after[self.last].append(time.perf_counter() - self.began)
        self.last = "none"
        self.calls += 1
        self._wait()  # outside of what is timed: a save that is due waits for the one before it
        if self.calls % 2 == 0 and progress.step:
            self.last = ("background", "waited for")[self.calls // 2 % 2]
            start = time.perf_counter()
            self._save(progress)
            if self.last == "waited for":
                self._wait()
            self.stands[self.last].append(time.perf_counter() - start)
        super().save_if_due(progress)
        self.began = time.perf_counter()


def describe(name, seconds):
    low, high = min(seconds), max(seconds)
    print(
        f"{name:<28} {1000 * statistics.median(seconds):7.0f} ms"
        f"  ({1000 * low:.0f} to {1000 * high:.0f}, {len(seconds)} times)"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--saves", type=int, default=8, help="of each kind")
    parser.add_argument("--image", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--folder", help="where to write; by default the system's temporary folder")
    options = parser.parse_args()
    with convoy.Strategy(devices=1).scope():
        shape = (options.image, options.image, 3)
        model = keras.applications.ResNet50(weights=None, input_shape=shape)
        model.compile(
            keras.optimizers.SGD(0.01, momentum=0.9),
            "sparse_categorical_crossentropy",
            steps_per_execution=2,
        )
    # The first saves allocate memory and are not counted, as the first calls compile.
    steps = 2 * 4 * (options.saves + 1)
    x = np.zeros((steps * options.batch, *shape), "float32")
    y = np.zeros(len(x), "int32")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        timed = Timed(folder)
        model.fit(x, y, batch_size=options.batch, verbose=0, callbacks=[timed])
        newest = Folder(folder)
        size = sum(f.stat().st_size for f in newest.at(newest.positions()[-1]).iterdir())
    print(f"ResNet-50 with momentum: {size / 2**20:.0f} MiB in a checkpoint\n")
    background, waited = (timed.stands[name][1:] for name in ("background", "waited for"))
    describe("stands still, background", background)
    describe("stands still, waited for", waited)
    ratios = [a / b for a, b in zip(background, waited, strict=False)]
    print(
        f"ratio                        {100 * statistics.median(ratios):7.1f} %"
        f"   ({100 * min(ratios):.1f} to {100 * max(ratios):.1f})\n"
    )
    describe("device call without a save", timed.after["none"][3:])
    describe("device call during a save", timed.after["background"][1:])


if __name__ == "__main__":
    main()
