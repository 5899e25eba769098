"""What services are told; the packages are stood in for by ones that write it down."""

import sys

import pytest
from convoy.train.experiment_trackers import check_installed, open_trackers
from convoy.train.flags import Options
from convoy.train.metrics import MetricsRow

RECORD = MetricsRow("training", 8, 0.5, 1.25, 0.75, 100.0, 0.1)

WANDB = """
calls = []
class Run:
    id = "abc"
    def log(self, values): calls.append(("log", values))
    def finish(self): calls.append(("finish",))
def init(**settings):
    calls.append(("init", settings))
    return Run()
"""

MLFLOW = """
from types import SimpleNamespace
calls = []
def set_experiment(name): calls.append(("experiment", name))
def start_run(run_id=None, run_name=None):
    calls.append(("start", run_id, run_name))
    return SimpleNamespace(info=SimpleNamespace(run_id="xyz"))
def log_params(values): calls.append(("params", values))
def log_metrics(values, step): calls.append(("metrics", values, step))
def end_run(): calls.append(("end",))
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Modules that write down how they are called."""
    for name, text in (("wandb", WANDB), ("mlflow", MLFLOW)):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    yield folder
    for name in ("wandb", "mlflow"):
        sys.modules.pop(name, None)


def track(options, folder, name):
    with open_trackers(options, folder) as listeners:
        for listener in listeners:
            listener(RECORD)
    calls = sys.modules[name].calls
    made = list(calls)
    calls.clear()
    return made


def test_wandb_is_told_flags_and_records_and_goes_on(installed):
    options = Options(wandb=True, wandb_tags=["a"], micro_batch_size=4)
    first, log, finish = track(options, installed, "wandb")
    assert first[1]["name"] == "run"
    assert first[1]["tags"] == ["a"]
    assert first[1]["config"]["micro-batch-size"] == 4
    assert first[1]["id"] is None
    assert log[1]["training/loss"] == 1.25
    assert finish == ("finish",)
    again = track(Options(wandb=True, resume=True), installed, "wandb")[0][1]
    assert (again["id"], again["resume"]) == ("abc", "allow")


def test_mlflow_is_told_flags_and_records_and_goes_on(installed):
    made = track(Options(mlflow=True), installed, "mlflow")
    assert [call[0] for call in made] == ["experiment", "start", "params", "metrics", "end"]
    assert made[1][1:] == (None, "run")
    assert made[3][1]["training/accuracy"] == 0.75
    assert made[3][2] == 8
    again = track(Options(mlflow=True, resume=True), installed, "mlflow")
    assert [call[0] for call in again] == ["experiment", "start", "metrics", "end"]
    assert again[1][1:] == ("xyz", None)


def test_nobody_is_told_unless_asked(tmp_path):
    with open_trackers(Options(), tmp_path) as listeners:
        assert listeners == []
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_missing_is_named():
    with pytest.raises(ValueError, match="--mlflow needs the package mlflow"):
        check_installed(Options(mlflow=True))
