"""The application in several processes."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

TRAIN = Path(__file__).parents[2] / "examples" / "cnns" / "train.py"
WORDS = ["--precision", "32.32", "--seed", "1", "--micro-batch-size", "5", "--num-epochs", "2"]


def run(*words, folder):
    environment = os.environ | {"CONVOY_COMPILATION_CACHE": "0"}
    ended = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def rows(folder):
    (file,) = folder.glob("runs/*/metrics.csv")
    with file.open() as lines:
        return [
            (
                row["phase"],
                row["epoch"],
                row["update"],
                float(row["loss"] or 0),
                float(row["accuracy"]),
            )
            for row in csv.DictReader(lines)
        ]


@pytest.mark.slow
def test_two_processes_are_one_run_with_one_folder(small_cifar, tmp_path):
    words = [TRAIN, *WORDS, "--dataset-path", small_cifar]
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    run(*words, "--num-replicas", 2, folder=one)
    launched = ["-m", "convoy", "launch", "--num-instances", 2, sys.executable]
    ended = run(*launched, *words, "--ckpt-all-instances", folder=two)
    assert (
        "--num-replicas 1 is overridden by the 2 replicas that were launched"
        in ended.stderr + ended.stdout
    )
    spoken = {line[:3] for line in ended.stdout.splitlines() if "validation_accuracy" in line}
    assert spoken == {"[0]"}
    for ours, theirs in zip(rows(two), rows(one), strict=True):
        assert ours[:3] == theirs[:3]
        assert ours[3:] == pytest.approx(theirs[3:], rel=1e-4)
    (checkpoints,) = two.glob("runs/*/checkpoints")
    for rank in ("rank0", "rank1"):
        saved = sorted(path.name for path in (checkpoints / rank).iterdir())
        assert saved == ["epoch_1.0.weights.h5", "epoch_2.0.weights.h5"]
