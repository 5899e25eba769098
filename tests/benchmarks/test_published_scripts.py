import math

import pytest
from benchmarks.published_scripts import largest_difference

from benchmarks import published_scripts

pytestmark = pytest.mark.integration

EQUAL = """
import keras
import numpy as np

x = np.random.default_rng().normal(size=(16, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
model.fit(x, x[:, :1], batch_size=4, epochs=2, validation_split=0.25)
model.evaluate(x, x[:, :1])
"""
DIFFERENT = """
import sys
import keras
import numpy as np

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((8, 4)) * (2 if "convoy" in sys.modules else 1)
model.fit(x, x[:, :1])
model.compile("sgd", "mse", run_eagerly=True)
model.evaluate(x, x[:, :1])
"""
EAGER_NOTICE = (
    "run_eagerly=True was passed to compile(). Stock Keras runs evaluate() of 'sequential'. "
    "Leave it out to use Convoy's engine."
)
SMALL_DATA = """
import keras
import numpy as np

(x, y), (x_test, y_test) = keras.datasets.mnist.load_data()
assert (x.shape, x_test.shape) == ((32, 28, 28), (16, 28, 28))
(words, _), _ = keras.datasets.imdb.load_data(num_words=20)
assert max(map(max, words)) < 20
with open(keras.utils.get_file("scale.txt", "https://example.com/scale.txt")) as file:
    x = x.reshape(32, 784) / float(file.read())
assert np.loadtxt("https://example.com/scale.txt?raw=true") == 255
model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(x, y, batch_size=4, epochs=5)
assert len(history.epoch) == 2
keras.applications.VGG16(include_top=False, input_shape=(32, 32, 3), weights="imagenet")
"""
ONLY_STOCK = """
import sys

assert "convoy" not in sys.modules, "stock only"
"""


@pytest.mark.slow
def test_equal_scripts_pass_and_those_that_differ_or_fail_do_not(tmp_path, capsys):
    (tmp_path / "a.py").write_text(EQUAL)
    (tmp_path / "b.py").write_text(DIFFERENT)
    (tmp_path / "c.py").write_text(ONLY_STOCK)
    (tmp_path / "d.py").write_text("raise RuntimeError('in both\\nof them')")
    assert published_scripts.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:6]]
    assert cells[0][0] == "a.py"
    assert float(cells[0][1]) == pytest.approx(float(cells[0][2]), rel=1e-5)
    assert float(cells[0][3].split()[0]) < 1e-5
    assert cells[0][4:] == ["engine", ""]
    assert cells[1][0] == "b.py"
    assert "(loss); in float64: " in cells[1][3]
    assert "; stock Keras, perturbed: " in cells[1][3]
    assert cells[1][3].endswith("**failed**")
    assert cells[1][4:] == ["engine and stock", EAGER_NOTICE]
    assert cells[2] == ["c.py", "ok", "AssertionError: stock only", "- **failed**", "-", ""]
    assert cells[3] == ["d.py", "RuntimeError: in both of them", "-", "-", "-", ""]
    assert lines[-1] == "4 scripts, 2 failed."


@pytest.mark.slow
def test_small_data_takes_the_place_of_downloads(tmp_path, capsys):
    (tmp_path / "small.py").write_text(SMALL_DATA)
    (tmp_path / "files/small").mkdir(parents=True)
    (tmp_path / "files/small/scale.txt").write_text("255")
    options = ["--samples", "32", "--epochs", "2", "--steps", "3"]
    script, files = str(tmp_path / "small.py"), str(tmp_path / "files")
    assert published_scripts.main([script, *options, "--files", files]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert float(cells[1]) == pytest.approx(float(cells[2]), rel=1e-5)
    assert cells[4:] == ["engine", ""]


def test_a_script_that_takes_too_long_is_killed(tmp_path, capsys):
    (tmp_path / "endless.py").write_text("while True: pass")
    assert published_scripts.main([str(tmp_path), "--timeout", "0.5"]) == 0
    assert "| endless.py | no end after 0.5 s | - | - | - |  |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing"], "missing does not exist."),
        (["."], ". contains no .py files."),
        ([".", "--replicas", "0"], "--replicas must be positive, not 0."),
        ([".", "--epochs", "-1"], "--epochs must be positive, not -1."),
        ([".", "--samples", "-1"], "--samples must not be negative, but is -1."),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    if len(words) > 1:
        (tmp_path / "script.py").touch()
    assert published_scripts.main(words) == 2
    assert capsys.readouterr().err == f"published_scripts: {message}\n"


def test_the_largest_difference_is_relative_and_names_the_value():
    stock = [("epoch", {"loss": 2.0, "f1": [0.5, math.nan]}), ("evaluation", {"loss": 1e-9})]
    found = [("epoch", {"loss": 2.002, "f1": [0.51, math.nan]}), ("evaluation", {"loss": 0.0})]
    difference, name = largest_difference(stock, found)
    assert difference == pytest.approx(0.01 / 0.51)
    assert name == "f1"
    assert largest_difference(stock, stock)[0] == 0
    assert largest_difference(stock, stock[:1]) == (math.inf, "1 logs instead of 2")
    other = [("epoch", {"loss": math.nan, "f1": [0.5, math.nan]}), stock[1]]
    assert largest_difference(stock, other) == (math.inf, "loss")
    other = [("epoch", {"loss": 2.0, "accuracy": 0.5}), stock[1]]
    assert largest_difference(stock, other) == (math.inf, "accuracy f1")
