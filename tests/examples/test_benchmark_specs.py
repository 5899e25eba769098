"""The benchmark specs of the examples: every command names a script and flags that exist."""

from pathlib import Path

import pytest
from convoy.bench.command import make_command
from convoy.bench.spec import read_benchmarks
from convoy.cli.bench import main
from convoy.cli.train import parse
from convoy.train.run_settings import make_run_settings
from tests.examples.cifar import write_cifar

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = sorted(EXAMPLES.glob("*/benchmarks.yml"))
VARIABLES = {"DATASETS_DIR": "/data", "CONVOY_BENCH_FOLDER": "/logs"}


def test_every_example_has_benchmarks_for_a_laptop_and_for_a_cluster():
    assert {spec.parent for spec in SPECS} == {path for path in EXAMPLES.iterdir() if path.is_dir()}
    for spec in SPECS:
        names = [entry.name for entry in read_benchmarks([spec], include_convergence=True)]
        assert any("laptop" in name for name in names)
        assert any("cluster" in name for name in names)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.parent.name)
def test_every_command_names_an_existing_script_and_valid_flags(spec):
    for benchmark in read_benchmarks([spec], include_convergence=True):
        for parameters in benchmark.parameters:
            words = make_command(benchmark, parameters, VARIABLES)
            (script, *_) = [word for word in words if word.endswith(".py")]
            assert (spec.parent / script).is_file()
            if script == "train.py" and spec.parent.name == "cnns":
                make_run_settings(parse(words[words.index(script) + 1 :]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "names"),
    [
        ("digits", ["digits_laptop"]),
        ("cifar10", ["cifar10_laptop"]),
        ("estimator_cnn", ["estimator_laptop_gen"]),
        ("cnns", ["cnns_resnet8_laptop_synth", "cnns_serving_laptop_synth"]),
    ],
)
def test_benchmarks_for_a_laptop_pass(example, names, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DATASETS_DIR", str(write_cifar(tmp_path, per_batch=256, test=1280)))
    spec = EXAMPLES / example / "benchmarks.yml"
    words = ["--spec", str(spec), "--log-dir", str(tmp_path / "log"), "--benchmark", *names]
    assert main(words) == 0, capsys.readouterr().out
