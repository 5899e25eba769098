import math

import pytest
from convoy.train.metrics import MetricsFile, MetricsRow, average, read_metrics


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


def row(loss, throughput=10.0, **more):
    return MetricsRow("training", 8, 0.5, loss, 0.25, throughput, 0.1, **more)


def test_log_lines_have_the_fields_that_scripts_look_for():
    fields = row(1.5, compilation=3.0, loss_scale=8.0).fields
    assert fields[0] == "throughput: 10.0 samples/sec"
    assert fields[1] == "Compilation Time: 3.0 s"
    assert fields[-2:] == ["loss: 1.5000", "training_accuracy: 25.00 %"]
    assert "loss_scaling_factor: 8" in fields
    assert "epoch: 0.5" in fields
    assert "lr: 0.1" in fields


def test_an_average_joins_calls_of_equally_many_samples():
    # 4 samples at 10 per second and 4 at 40 take half a second: 16 per second.
    joined = average([row(1.0, 10.0, compilation=2.0), row(4.0, 40.0)])
    assert joined.loss == 2.5
    assert joined.throughput == pytest.approx(16)
    assert joined.compilation == 2.0


def test_unknown_throughputs_do_not_count_in_an_average():
    assert average([row(1.0, math.nan), row(1.0, 5.0)]).throughput == 5.0


def test_scalars_are_named_by_phase_without_what_is_unknown():
    scalars = row(1.5, compilation=3.0).scalars
    assert scalars["training/loss"] == 1.5
    assert scalars["training/compilation"] == 3.0
    assert "training/loss_scale" not in scalars
    assert "training/update" not in scalars


def test_a_file_gives_back_the_rows_that_were_written(tmp_path):
    rows = [row(1.0, compilation=2.0), row(0.1 + 0.2, loss_scale=8.0), row(math.inf)]
    file = MetricsFile(tmp_path / "metrics.csv")
    for one in rows:
        file.add(one)
    assert read_metrics(tmp_path / "metrics.csv") == rows


def test_rows_end_where_one_is_not_complete(tmp_path):
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    for one in (row(1.0), row(2.0), row(3.0)):
        file.add(one)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:-3])
    assert read_metrics(path) == [row(1.0), row(2.0)]
    path.write_text("".join([*lines[:2], "training,x\n", *lines[2:]]))
    assert read_metrics(path) == [row(1.0)]
