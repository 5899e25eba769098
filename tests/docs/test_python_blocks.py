"""The Python code on the pages runs as it stands, each page in a folder of its own."""

import sys
from contextlib import nullcontext

import convoy
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from .pages import PAGES, ROOT, blocks

# The tutorial is run with its own data by tests/examples/test_mnist.py.
ELSEWHERE = {ROOT / "examples/mnist/README.md"}
CLASSES = 10


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


def at_hand(page):
    """Return what a page takes for granted."""
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


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p not in ELSEWHERE and any(b.language == "python" for b in blocks(p))],
    ids=lambda page: page.stem,
)
# Keras's own, where `keras.ops` compares whole numbers with a network's outputs.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")
def test_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["page.py", "--help"])
    names = at_hand(page)
    for number, block in enumerate(blocks(page), start=1):
        if block.language != "python":
            continue
        code = compile(block.text, f"{page.relative_to(ROOT)}, block {number}", "exec")
        passes_status = "sys.exit(" in block.text
        with pytest.raises(SystemExit, match=r"^0$") if passes_status else nullcontext():
            exec(code, names)
