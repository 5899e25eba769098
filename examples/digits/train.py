"""Train a small CNN on handwritten digits, on two devices.

    python examples/digits/train.py

Expected: 98 % or better on the 389 validation digits, in under half a minute on two CPU cores. The
trained model, metrics and curves are written to `runs/digits`. An interrupted run resumes when it
is started again; after a finished run, a new one begins.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
import time
from pathlib import Path

from convoy_command import ended_by_interrupt
from convoy_command.parser import Parser

with ended_by_interrupt():  # importing takes seconds
    import convoy
    import keras
    from convoy.data import load_digits


def make_model() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.4),
            layers.Dense(10, activation="softmax"),
        ],
        name="digits",
    )


def write_metrics(history: dict[str, list[float]], file: Path) -> None:
    """Write the metrics of every epoch as CSV."""
    with file.open("w") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(["epoch", *history])
        rows = zip(*history.values(), strict=True)
        writer.writerows([epoch, *row] for epoch, row in enumerate(rows, 1))


def plot_curves(history: dict[str, list[float]], path: Path) -> None:
    """Draw loss and accuracy by epoch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    epochs = range(1, len(history["loss"]) + 1)
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for axis, name in zip(axes, ("loss", "accuracy"), strict=True):
        for column, label in ((name, "training"), (f"val_{name}", "held out")):
            axis.plot(epochs, history[column], label=label)
        axis.set(xlabel="epoch", ylabel=name)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=120)


def parse_options() -> tuple[argparse.Namespace, convoy.Strategy]:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="replicas (default: 2)")
    parser.add_argument("--epochs", type=int, default=20, help="number of epochs (default: 20)")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="batch size of a replica (default: 32)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--output", type=Path, default=Path("runs/digits"), help="output folder")
    options = parser.parse_args()
    if min(options.epochs, options.batch_size) < 1:
        parser.error(
            f"--epochs {options.epochs} --batch-size {options.batch_size}: pass 1 or more for both"
        )
    try:
        return options, convoy.Strategy(devices=options.devices)
    except ValueError as error:
        parser.error(str(error))


def main() -> None:
    options, strategy = parse_options()
    keras.utils.set_random_seed(options.seed)
    (x_train, y_train), (x_test, y_test) = load_digits()
    print(
        f"{len(x_train)} digits to train on, {len(x_test)} held out; {strategy.replicas} replicas"
    )

    updates = max(1, options.epochs * len(x_train) // (options.batch_size * strategy.replicas))
    with strategy.scope():
        model = make_model()
        model.compile(
            keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(4e-3, updates)),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution="auto",
        )

    state = options.output / "unfinished"
    resumed = any(state.glob("epoch-*"))
    start = time.perf_counter()
    try:
        history = model.fit(
            x_train,
            y_train,
            batch_size=options.batch_size,
            epochs=options.epochs,
            validation_data=(x_test, y_test),
            callbacks=[convoy.Checkpoints(state)],
        ).history
    except SystemExit:  # on Ctrl-C, when a checkpoint has been written
        print("Run it again to resume.")
        raise
    except (convoy.CheckpointError, ValueError) as error:
        sys.exit(f"{error} To start a new run, remove {state}." if resumed else str(error))
    seconds = time.perf_counter() - start
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)

    trained = options.output / "model.keras"
    metrics = options.output / "metrics.csv"
    curves = options.output / "curves.png"
    model.save(trained)
    write_metrics(history, metrics)
    plot_curves(history, curves)
    shutil.rmtree(state)  # the next run starts anew

    print()
    print(f"held-out accuracy  {accuracy:.2%}")
    if not resumed:
        print(f"throughput         {options.epochs * len(x_train) / seconds:,.0f} images/s")
    print(f"model              {trained}")
    print(f"metrics            {metrics}")
    print(f"curves             {curves}")


if __name__ == "__main__":
    with ended_by_interrupt():
        main()
