"""What the reader of a page has: a network, arrays, data sets, and files that a page names."""

import shutil
import sys
from pathlib import Path

import convoy
import jax.numpy as jnp
import keras
import numpy as np
from convoy_command import cli
from PIL import Image
from tests.examples.cifar import write_cifar
from tests.examples.cosmoflow.record_files import write_volumes
from tests.examples.digits import write_digits

from .pages import ROOT, blocks

FILES = Path(__file__).parent / "at_hand"
CLASSES = 10
VOLUME = (32, 32, 32, 4)


def make_model():
    """The reader's own network."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu", name="conv_1"),
            layers.Conv2D(4, 3, activation="relu", name="conv_2"),
            layers.Flatten(),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def names_at_hand(page):
    """Return what the Python code of a page takes for granted."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 8, 8, 1)).astype("float32")
    y = rng.integers(CLASSES, size=512).astype("int32")
    names = {"convoy": convoy, "keras": keras, "jnp": jnp, "make_model": make_model, "x": x, "y": y}
    names |= {"x_train": x, "y_train": y, "x_test": x[:64], "y_test": y[:64]}
    names |= {"my_network": make_model, "__file__": str(page), "__name__": "page"}
    if page.name == "porting.md":
        names["y"] = keras.utils.to_categorical(y, CLASSES)
    if page.name in ("checkpoints.md", "serving.md"):
        with convoy.Strategy(devices=1).scope():
            names["model"] = make_model()
            names["model"].compile("sgd", "sparse_categorical_crossentropy", steps_per_execution=16)
    if page.name == "estimators.md":
        names["PipelineEstimatorSpec"] = convoy.estimator.PipelineEstimatorSpec
    return names


def write_data_sets(folder):
    """Write all data sets that pages speak of, small, in their own formats, into one folder."""
    write_cifar(folder, per_batch=32, test=32)
    write_digits(folder / "mnist.npz", train=1700, test=1700)
    for name, colour in (("cat", 50), ("dog", 200)):
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (40, 30), (colour, number, 0)).save(
                folder / "pictures" / name / f"{number}.png"
            )
    write_volumes(folder / "train", 32, shape=VOLUME, compressed=True)
    write_volumes(folder / "validation", 4, shape=VOLUME, compressed=True)
    return folder


def write_house(folder):
    """Write what can be run in the repository into a folder; volumes have fewer voxels there."""
    unwanted = shutil.ignore_patterns("__pycache__", "data", "results", "runs")
    for name in ("benchmarks", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    (folder / ".venv").symlink_to(sys.prefix)
    for file in (folder / "examples/cosmoflow/configs").iterdir():
        text = file.read_text()
        for size in (64, 128):
            text = text.replace(str([size, size, size, 4]), str([*VOLUME]))
        file.write_text(text)
    return folder


def write_files_at_hand(page, folder, data):
    """Write what the commands of a page take for granted into the current folder."""
    if (FILES / page.stem).is_dir():
        shutil.copytree(FILES / page.stem, folder, dirs_exist_ok=True)
    if page.name == "cluster.md":
        (script,) = [block.text for block in blocks(page) if block.language == "python"]
        (folder / "train.py").write_text(script)
    if page.name == "reports.md":
        shutil.copytree(folder / "report", folder / "other-report")
    if page.name == "serving.md":
        flags = ["--num-epochs", "1", "--dataset-path", str(data)]
        assert cli.main(["train", "--config", "mnist", *flags]) == 0
        with np.load(data / "mnist.npz") as arrays:
            Image.fromarray(arrays["x_test"][0]).save(folder / "seven.png")
