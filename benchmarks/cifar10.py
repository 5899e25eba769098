"""Accuracy of ResNet-8 on CIFAR-10: the recipe `cifar10_resnet8`, and the same recipe in PyTorch.

Expected: the mean accuracies over the seeds differ by less than one point between the programs, and
by less than 0.4 points between float32 and bfloat16. Seven minutes per seed, precision and program
on two cores:

    .venv/bin/python -m benchmarks.cifar10 DIR --seeds 1 2 3 --output cifar10.md

DIR contains CIFAR-10 in one of the formats that `convoy train` reads. The page is written after
every run, with its figures in a JSON file beside it. A later call with the same output continues:
it skips the runs that the JSON file has.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from benchmarks.peers import environments, machine
from benchmarks.peers.report import table
from convoy.data import load

EPOCHS = 20
PROGRAMS = {"convoy": "Convoy", "torch": "PyTorch"}
# PyTorch computes in bfloat16 by autocast, with float32 weights, like Keras's mixed policy.
PRECISIONS = ("float32", "mixed_bfloat16")

Runs = dict[str, list[float]]
"""Accuracy and seconds by `program precision seed epochs`."""


def run_convoy(data: Path, precision: str, seed: int, epochs: int) -> list[float]:
    """Return the accuracy of the last weights, and the seconds of the whole run."""
    words = ["--config", "cifar10_resnet8", "--dataset-path", data, "--seed", seed]
    words += ["--num-epochs", epochs, "--ckpts-per-epoch", 0, "--precision", precision]
    if epochs != EPOCHS:
        rates = f"{{initial_learning_rate: 1.5e-3, epochs_to_total_decay: {epochs - 3}}}"
        words += ["--lr-schedule-params", rates]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        words += ["--output-dir", folder]
        command = [sys.executable, "-m", "convoy", "train", *map(str, words)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"held-out accuracy +([\d.]+)%", done.stdout)
    assert found, done.stdout
    return [float(found[1]) / 100, time.perf_counter() - began]


def run_torch(data: Path, precision: str, seed: int, epochs: int) -> list[float]:
    python = environments.python("torch")
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder) / "cifar10.npz"
        found = load("cifar10", data)
        (x, y), (x_test, y_test) = found.train, found.test
        np.savez(arrays, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
        words = [str(arrays), str(seed), str(epochs), precision]
        done = subprocess.run(
            [str(python), "-m", "benchmarks.cifar10_torch", *words],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=environments.ROOT,
        )
    return [float(word) for word in done.stdout.split()]


def page(runs: Mapping[str, list[float]]) -> str:
    """Return the page, with a row for each program, precision and number of epochs."""
    groups: dict[tuple[str, ...], list[tuple[str, float, float]]] = {}
    for key, (accuracy, seconds) in runs.items():
        program, precision, seed, epochs = key.split()
        row = PROGRAMS[program], precision, epochs
        groups.setdefault(row, []).append((seed, accuracy, seconds))
    rows = []
    for row, found in sorted(groups.items()):
        accuracies = [accuracy for _, accuracy, _ in found]
        each = ", ".join(f"{seed}: {accuracy:.2%}" for seed, accuracy, _ in sorted(found))
        mean, seconds = statistics.mean(accuracies), statistics.mean(entry[2] for entry in found)
        rows.append([*row, each, f"{mean:.2%}", f"{seconds:.0f}"])
    head = [
        "program",
        "precision",
        "epochs",
        "held-out accuracy by seed",
        "mean",
        "seconds of a run",
    ]
    parts = [
        "# ResNet-8 on CIFAR-10",
        f"`python -m benchmarks.cifar10`, {time.strftime('%Y-%m-%d')}, commit {machine.commit()}, "
        f"{machine.describe()['CPU']}. Accuracy of the 10,000 held-out images.",
        table(head, rows),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--output", type=Path, required=True, help="the page to write")
    options = parser.parse_args()
    problem = environments.build("torch") if "torch" in options.programs else ""
    if problem:
        raise SystemExit(problem)
    figures = options.output.with_suffix(".json")
    runs: Runs = json.loads(figures.read_text()) if figures.exists() else {}
    for seed in options.seeds:
        for precision in options.precisions:
            for program in options.programs:
                key = f"{program} {precision} {seed} {options.epochs}"
                if key in runs:
                    continue
                run = {"convoy": run_convoy, "torch": run_torch}[program]
                runs[key] = run(options.data, precision, seed, options.epochs)
                print(key, *runs[key], flush=True)
                figures.write_text(json.dumps(runs, indent=1) + "\n")
                options.output.write_text(page(runs))
    print(page(runs))


if __name__ == "__main__":
    main()
