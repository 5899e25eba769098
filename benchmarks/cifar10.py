"""Accuracy of ResNet-8 on CIFAR-10: the recipe `cifar10_resnet8`, and the same recipe in PyTorch.

Expected: the mean accuracies over the seeds differ by less than one point. Seven minutes per seed
and program on two cores:

    .venv/bin/python -m benchmarks.cifar10 DIR --seeds 1 2 3

DIR contains CIFAR-10 in one of the formats that `convoy train` reads.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from benchmarks.peers import environments, machine
from convoy.data import load

EPOCHS = 20


def run_convoy(folder: Path, data: Path, seed: int, epochs: int) -> tuple[float, float]:
    """Return the accuracy of the last weights, and the seconds of the whole run."""
    words = ["--config", "cifar10_resnet8", "--dataset-path", data, "--seed", seed]
    words += ["--num-epochs", epochs, "--ckpts-per-epoch", 0, "--output-dir", folder]
    if epochs != EPOCHS:
        rates = f"{{initial_learning_rate: 1.5e-3, epochs_to_total_decay: {epochs - 3}}}"
        words += ["--lr-schedule-params", rates]
    began = time.perf_counter()
    command = [sys.executable, "-m", "convoy", "train", *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"held-out accuracy +([\d.]+)%", done.stdout)
    assert found, done.stdout
    return float(found[1]) / 100, time.perf_counter() - began


def run_torch(arrays: Path, seed: int, epochs: int) -> tuple[float, float]:
    python = environments.python("torch")
    command = [str(python), "-m", "benchmarks.cifar10_torch", str(arrays), str(seed), str(epochs)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=environments.ROOT
    )
    accuracy, seconds = done.stdout.split()
    return float(accuracy), float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--output", type=Path, help="a page to write")
    options = parser.parse_args()
    problem = environments.build("torch")
    if problem:
        raise SystemExit(problem)
    data = load("cifar10", options.data)
    rows: dict[str, list[tuple[float, float]]] = {"Convoy": [], "PyTorch": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arrays = folder / "cifar10.npz"
        (x, y), (x_test, y_test) = data.train, data.test
        np.savez(arrays, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
        for seed in options.seeds:
            run = folder / f"seed{seed}"
            rows["Convoy"].append(run_convoy(run, options.data, seed, options.epochs))
            rows["PyTorch"].append(run_torch(arrays, seed, options.epochs))
            print(seed, {name: found[-1] for name, found in rows.items()}, flush=True)
    seeds = ", ".join(map(str, options.seeds))
    lines = [
        "# ResNet-8 on CIFAR-10",
        "",
        f"`python -m benchmarks.cifar10`, {time.strftime('%Y-%m-%d')}, commit {machine.commit()}, "
        f"seeds {seeds}, {options.epochs} epochs, {machine.describe()['CPU']}.",
        "",
        "| | accuracy of the 10,000 held-out images | mean | seconds of a run |",
        "|---|---|---|---|",
    ]
    for name, found in rows.items():
        accuracies = [accuracy for accuracy, _ in found]
        each = ", ".join(f"{accuracy:.2%}" for accuracy in accuracies)
        seconds = statistics.mean(seconds for _, seconds in found)
        lines.append(f"| {name} | {each} | {statistics.mean(accuracies):.2%} | {seconds:.0f} |")
    print("\n".join(lines))
    if options.output:
        options.output.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
