"""A user's own images from training to the exported model."""

import json
import shutil

import h5py
import numpy as np
import pytest
from convoy.cli.export import main as export

pytestmark = pytest.mark.integration
cv2 = pytest.importorskip("cv2")

COMMON = ("--dataset", "folder", "--dataset-path", "pictures", "--image-size", 8, "--seed", 1)


@pytest.fixture
def pictures(application, tmp_path):
    """A folder of images whose colour is their class; returns the command that uses it."""
    rng = np.random.default_rng(0)
    for label, name in enumerate(("blue", "green", "red")):
        folder = tmp_path / "pictures" / name
        folder.mkdir(parents=True)
        for number in range(10):
            pixels = rng.integers(0, 60, (12, 10, 3), np.uint8)
            pixels[..., label] += 150
            cv2.imwrite(str(folder / f"{number}.png"), pixels)

    def run(*words):
        return application(*COMMON, *words, data=False)

    return run


def test_own_images_are_learnt_and_the_exported_model_knows_their_names(pictures, tmp_path):
    words = ("--batch-size", 4, "--epochs", 8, "--learning-rate", 0.05, "--output-dir", "run")
    done = pictures("--model", "cifar_resnet8", *words)
    assert done.status == 0, done.err
    assert "validation_accuracy: 100.00 %" in done.out
    line = "images              24 to train on, 6 to validate on, 3 classes: blue, green, red"
    assert line in done.out.splitlines()
    # The run knows the classes without the images.
    shutil.rmtree(tmp_path / "pictures")
    words = ["--checkpoint", "run", "--export-dir", "model", "--batch-sizes", "1"]
    assert export(words) == 0
    (manifest,) = (tmp_path / "model").glob("1/*.json")
    assert json.loads(manifest.read_text())["class_names"] == ["blue", "green", "red"]


@pytest.mark.slow
def test_a_head_is_trained_on_frozen_layers(pictures, tmp_path):
    words = ("--model", "mnist_cnn", "--image-size", 28, "--batch-size", 4, "--output-dir")
    assert pictures(*words, "first").status == 0
    weights = ("--weights", "first/checkpoints/epoch_1.0.weights.h5")
    done = pictures(*words, "second", *weights, "--freeze-until", "fc_layer")
    assert done.status == 0, done.err
    assert "initial weights     " in done.out
    first, second = (layers_of(tmp_path / name) for name in ("first", "second"))
    changed = {name for name in first if not np.array_equal(first[name], second[name])}
    assert changed == {name for name in first if "/dense/" in name}
    assert len(changed) == 2


def layers_of(run):
    """Return the weights of a run's checkpoint, by the names of their datasets."""
    found = {}
    with h5py.File(run / "checkpoints/epoch_1.0.weights.h5") as file:
        layers = file["layers"]
        layers.visititems(
            lambda name, item: found.update(
                {f"/{name}": item[()]} if hasattr(item, "dtype") else {}
            )
        )
    return found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dataset-path", "picture"), "picture: there is no such folder or CSV file"),
        (("--validation-split", 1), "--validation-split 1: pass less than 1"),
        (("--classes", "red", "green"), "blue is not a class"),
        (("--weights", "nowhere.keras"), "--weights nowhere.keras: there is no such file"),
    ],
)
def test_what_is_wrong_is_one_line(pictures, words, message):
    done = pictures("--model", "cifar_resnet8", "--batch-size", 4, *words)
    assert done.status == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1
