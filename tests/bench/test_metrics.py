import math
import re
from datetime import UTC, datetime

import pytest
from convoy.bench import metrics
from convoy.bench.execution import Execution
from convoy.bench.metrics import read_metrics
from convoy.bench.spec import read_benchmark


@pytest.fixture(autouse=True)
def no_custom_metrics(monkeypatch):
    monkeypatch.setattr(metrics, "_custom", {})


def found_in(stdout, data, *, derived=None, stderr="", status=0, words=(), parameters=None, tmp):
    entry = {"cmd": "x", "data": data, "derived": derived}
    benchmark = read_benchmark("name", entry, tmp / "spec.yml")
    execution = Execution(status, stdout, stderr, datetime.now(UTC), 0.0)
    return read_metrics(benchmark, parameters or {}, words, execution)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("throughput", {}, {"mean": 2.5}),
        ("throughput", {"skip": 2}, {"mean": 3.5}),
        ("latency", {"skip": 2}, {"mean": 1.5}),
        ("loss", {"reduction_type": "final"}, {"final": 2}),
        ("loss", {"reduction_type": "min"}, {"min": 1}),
        ("loss", {"reduction_type": "value"}, {"value": 3}),
    ],
)
def test_values_are_reduced(tmp_path, name, settings, expected):
    data = {name: {"regexp": r"x=([\d.]+)", **settings}}
    found = found_in("x=3 x=1\nx=4\n", data, stderr="x=2\n", tmp=tmp_path)
    assert found.values == {name: expected}
    assert not found.missing


def test_thousands_may_have_commas(tmp_path):
    found = found_in("12,345 images/s", {"rate": {"regexp": r"([\d,]+) images"}}, tmp=tmp_path)
    assert found.values == {"rate": {"mean": 12345}}


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("nothing", 0, "x: nothing in the output matches 'x=(\\\\S+)'"),
        ("x=1", 0, "x: all 1 values are skipped (skip: 1)"),
        ("x=1 \nx=nan", 0, "x: a value in the output is not a number (NaN)"),
        ("x=1 \nx=big", 0, "x: could not convert string to float: 'big'"),
        ("x=1 \nx=2", 3, "x: the command exited with status 3"),
    ],
)
def test_a_missing_metric_says_why(tmp_path, text, status, message):
    data = {"x": {"regexp": r"x=(\S+)", "skip": 1}}
    found = found_in(text, data, status=status, tmp=tmp_path)
    assert found.missing == [message]
    assert found.values == {"x": {"mean": None}}


def test_derived_metrics_use_others_and_parameters(tmp_path):
    data = {"throughput": {"regexp": r"x=(\S+)"}, "lost": {"regexp": r"y=(\S+)"}}
    derived = {
        "seconds": {"expr": "{batch} / {throughput}"},
        "log": {"expr": "log2({throughput}) + max(1, 2)", "reduction_type": "value"},
        "nothing": {"expr": "{lost} + 1"},
        "slip": {"expr": "{throughputs} + 1"},
        "endless": {"expr": "{throughput} / 0"},
        "forbidden": {"expr": "open('x')"},
    }
    parameters = {"batch": "16"}
    found = found_in("x=8", data, derived=derived, parameters=parameters, tmp=tmp_path)
    assert found.values["seconds"] == {"mean": 2}
    assert found.values["log"] == {"value": 5}
    assert [line.split(":")[0] for line in found.missing] == [
        "lost",
        "nothing",
        "slip",
        "endless",
        "forbidden",
    ]
    assert "lost is missing" in found.missing[1]
    assert "{throughputs} is not a parameter" in found.missing[2]


def test_the_throughput_of_an_mpirun_is_that_of_all_processes(tmp_path):
    data = {name: {"regexp": r"x=(\S+)"} for name in ("throughput", "other")}
    words = ["mpirun", "--tag-output", "--np", "4", "python3", "train.py"]
    found = found_in("x=2", data, words=words, tmp=tmp_path)
    assert found.values == {"throughput": {"mean": 8}, "other": {"mean": 2}}


def test_custom_metrics_receive_the_whole_output(tmp_path):
    metrics.register_custom_metric("lines", lambda out, err, status: len(out.splitlines()))
    metrics.register_custom_metric("broken", lambda out, err, status: 1 / status)
    found = found_in("a\nb\nc\n", {}, tmp=tmp_path)
    assert found.values == {"lines": {"value": 3}, "broken": {"value": None}}
    assert found.missing == ["broken: ZeroDivisionError: division by zero"]
    assert re.fullmatch("lines", next(iter(found.samples)))
    assert math.isclose(found.samples["lines"][0], 3)
