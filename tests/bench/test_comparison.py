import json

import pytest
from convoy.bench.comparison import Measured, comparison_table, draw_chart, read_earlier
from convoy.bench.spec import SpecError


def test_a_change_beyond_the_spread_is_told_from_one_within_it():
    now = {"v": {"rate": Measured(20, [19, 21]), "loss": Measured(1.0, [0.9, 1.1])}}
    before = {"v": {"rate": Measured(10, [10, 11]), "loss": Measured(1.0, [0.9, 1.1])}}
    _, rate, loss = comparison_table(now, before)
    assert rate.split()[:5] == ["v", "rate", "10", "20", "+100.0%"]
    assert rate.endswith("+72.7% to +110.0%")
    assert loss.split()[4:] == ["+0.0%", "-18.2%", "to", "+22.2%", "within", "the", "spread"]


def test_variants_that_only_one_run_has_are_named():
    now = {"new": {"rate": Measured(1, [1])}, "failed": {}}
    _, *notes = comparison_table(now, {"old": {"rate": Measured(1, [1])}})
    assert notes == [
        "new: not compared, the earlier run has no figures of it",
        "failed: not compared, this run has no figures of it",
        "old: not in this run",
    ]


def test_a_value_of_zero_is_not_compared():
    zero = {"v": {"rate": Measured(0, [0])}}
    assert comparison_table({"v": {"rate": Measured(1, [1])}}, zero)[1:] == [
        "v: not compared, the earlier run has no figures of it"
    ]


def test_results_without_samples_are_read(tmp_path):
    entry = {"variant_name": "v", "results": {"rate": {"mean": 2.0}, "loss": {"final": None}}}
    file = tmp_path / "benchmark_results.json"
    file.write_text(json.dumps({"benchmark": [entry]}))
    assert read_earlier(tmp_path) == {"v": {"rate": Measured(2.0, [2.0])}}
    file.write_text("[]")
    with pytest.raises(SpecError, match="holds no results"):
        read_earlier(tmp_path)
    with pytest.raises(SpecError, match="No such file"):
        read_earlier(tmp_path / "none.json")


def test_a_chart_needs_measurements(tmp_path):
    assert draw_chart({"v": {}}, {}, tmp_path) is None
