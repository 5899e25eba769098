"""Small CIFAR-10 files, and a way to run the application on them."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from convoy.cli.train import main

TRAIN, TEST = 50, 23


@pytest.fixture(scope="session")
def small_cifar(tmp_path_factory):
    """A folder with 50 images to train on and 23 to validate on, whose colour is their class."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("data") / "cifar-10-batches-py"
    folder.mkdir()
    sizes = {f"data_batch_{number}": TRAIN // 5 for number in range(1, 6)} | {"test_batch": TEST}
    for name, size in sizes.items():
        labels = rng.integers(0, 10, size)
        pixels = (
            rng.integers(0, 100, (size, 3, 1024))
            + 15 * labels[:, None, None] * (np.array([0, 1, 0])[:, None])
        )
        batch = {b"data": pixels.reshape(size, -1).astype("uint8"), b"labels": labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(batch))
    return folder.parent


@pytest.fixture
def application(small_cifar, tmp_path, monkeypatch, capsys):
    """Run the application in a folder of its own; returns its exit status and what it said."""
    monkeypatch.chdir(tmp_path)

    def run(*words, data=True):
        words = [str(word) for word in words]
        if data:
            words += ["--dataset-path", str(small_cifar)]
        try:
            status = main(words)
        except SystemExit as stopped:
            status = stopped.code
        said = capsys.readouterr()
        return SimpleNamespace(status=status, out=said.out, err=said.err)

    return run
