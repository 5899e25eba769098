import os
import sys
from pathlib import Path

import pytest
from convoy.bench.command import fill, make_command, make_environment
from convoy.bench.spec import SpecError, read_benchmark


def words(tmp_path, command, parameters=None, environment=None, **changes):
    benchmark = read_benchmark("name", {"cmd": command}, tmp_path / "spec.yml")
    return make_command(benchmark, parameters or {}, environment or {}, **changes)


def test_parameters_and_variables_are_filled_in(tmp_path):
    command = """python3 train.py \\
      --batch {batch} --path $DATA/x ${DATA}
      --params '{"momentum": 0.9}' --more {{a}}"""
    found = words(tmp_path, command, {"batch": "8"}, {"DATA": "/some where"})
    assert found[:5] == ["python3", "train.py", "--batch", "8", "--path"]
    assert found[5:7] == ["/some where/x", "/some where"]
    assert found[-4:] == ["--params", '{"momentum": 0.9}', "--more", "{a}"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python3 {size}", r"\{size\} is not a parameter. Use one of batch."),
        ("python3 $DATASETS_DIR", r"uses \$DATASETS_DIR, which is not set"),
        ("python3 'x", "cannot be split into words: No closing quotation"),
        (" ", "has no words. Write a command"),
    ],
)
def test_a_command_that_cannot_be_run_is_an_error(tmp_path, command, message):
    with pytest.raises(SpecError, match=message):
        words(tmp_path, command, {"batch": "8"})


def test_flags_of_wandb_are_left_out_unless_allowed(tmp_path):
    command = "train --wandb --wandb-name x --wandb-tags=y --epochs 3 --vipu-partition p"
    assert words(tmp_path, command) == ["train", "--epochs", "3", "--vipu-partition", "p"]
    assert "--wandb-name" in words(tmp_path, command, allow_wandb=True)
    assert words(tmp_path, command, compile_only=True) == [
        "train",
        "--epochs",
        "3",
        "--compile-only",
    ]


def test_braces_around_other_text_stay():
    assert fill('{"a": 1} {b} {{b}}', {"b": 2}) == '{"a": 1} 2 {b}'


def test_programs_of_this_environment_come_first(tmp_path):
    entry = {"cmd": "x", "env": {"MINE": 1}}
    benchmark = read_benchmark("name", entry, tmp_path / "spec.yml")
    values = make_environment(benchmark, tmp_path, profile=True)
    assert values["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert values["MINE"] == "1"
    assert str(tmp_path / "profile") in values["POPLAR_ENGINE_OPTIONS"]
    assert values["CONVOY_BENCH_FOLDER"] == str(tmp_path)


def test_a_notebook_needs_its_packages(tmp_path, monkeypatch):
    (tmp_path / "walk.ipynb").write_text("{}")
    benchmark = read_benchmark("name", {"notebook": "walk.ipynb"}, tmp_path / "spec.yml")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"needs the package nbconvert. Install it with: pip"):
        make_command(benchmark, {}, {})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    found = make_command(benchmark, {}, {})
    assert found[-2:] == ["--ExecutePreprocessor.timeout=600", str(tmp_path / "walk.ipynb")]
