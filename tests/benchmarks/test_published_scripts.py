import math

import pytest
from benchmarks.published_scripts import largest_difference

from benchmarks import published_scripts

pytestmark = pytest.mark.integration

EQUAL = """
import keras
import numpy as np

x = np.random.normal(size=(16, 4)).astype("float32")
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
"""
ONLY_STOCK = """
import sys

assert "convoy" not in sys.modules, "stock only"
"""


def test_equal_scripts_pass_and_those_that_differ_or_fail_do_not(tmp_path, capsys):
    (tmp_path / "a.py").write_text(EQUAL)
    (tmp_path / "b.py").write_text(DIFFERENT)
    (tmp_path / "c.py").write_text(ONLY_STOCK)
    (tmp_path / "d.py").write_text("raise RuntimeError('in both\\nof them')")
    assert published_scripts.main([str(tmp_path), "--timeout", "120"]) == 1
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:6]]
    assert cells[0][:3] == ["a.py", "ok", "ok"]
    assert float(cells[0][3].split()[0]) < 1e-5
    assert cells[1][:3] == ["b.py", "ok", "ok"]
    assert cells[1][3].endswith("(loss) **failed**")
    assert cells[2] == ["c.py", "ok", "AssertionError: stock only", "- **failed**"]
    assert cells[3] == ["d.py", "RuntimeError: in both of them", "-", "-"]
    assert lines[-1] == "4 scripts, 2 failed."


def test_a_script_that_takes_too_long_is_killed(tmp_path, capsys):
    (tmp_path / "endless.py").write_text("while True: pass")
    assert published_scripts.main([str(tmp_path), "--timeout", "0.5"]) == 0
    assert "| endless.py | no end after 0.5 s | - | - |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing"], "missing is not a folder."),
        (["."], ". contains no .py files."),
        ([".", "--replicas", "0"], "--replicas must be positive, not 0."),
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
