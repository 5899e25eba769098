"""Host time per training step of a tiny model: stock Keras and Convoy.

    .venv/bin/python benchmarks/loop_overhead.py

The arithmetic of the model takes a few microseconds, so nearly all of a step is host overhead. All
variants train the same model on the same data and take turns, round by round, so that noise of the
machine affects all. The table gives the median over rounds and, in brackets, the smallest and the
largest. Expected: at N = 100 at least 10x lower than stock Keras at the same N, and at N = 1 not
higher.
"""

import argparse
import statistics
import time

import convoy
import keras
import numpy as np

EXECUTION_STEPS = (1, 10, 100, 1000)
BATCH = 4


def make_model(steps_per_execution):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    return model


def time_epoch(model, x, y):
    """Return the seconds of one step in an epoch over the data."""
    start = time.perf_counter()
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, shuffle=False)
    return (time.perf_counter() - start) / (len(x) // BATCH)


def median_and_spread(values, unit=1e6):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle * unit:8.1f} [{low * unit:.1f} to {high * unit:.1f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000, help="steps in an epoch")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.steps * BATCH, 4)).astype("float32")
    y = rng.normal(size=(options.steps * BATCH, 1)).astype("float32")
    models = {}
    for steps in EXECUTION_STEPS:
        models["keras", steps] = make_model(steps)
        with convoy.Strategy().scope():
            models["convoy", steps] = make_model(steps)
    for model in models.values():
        time_epoch(model, x, y)

    times = {name: [] for name in models}
    for _ in range(options.rounds):
        for name, model in models.items():
            times[name].append(time_epoch(model, x, y))

    print(f"microseconds per step, {options.steps} steps an epoch, {options.rounds} rounds")
    print(f"{'N':>5}  {'stock Keras':>30}  {'Convoy':>30}  {'ratio':>22}")
    for steps in EXECUTION_STEPS:
        stock, ours = times["keras", steps], times["convoy", steps]
        ratios = [s / o for s, o in zip(stock, ours, strict=True)]
        print(
            f"{steps:>5}  {median_and_spread(stock):>30}  {median_and_spread(ours):>30}"
            f"  {median_and_spread(ratios, 1):>22}"
        )


if __name__ == "__main__":
    main()
