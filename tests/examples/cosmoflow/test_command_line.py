"""Flags of train.py, which override the YAML file."""

from pathlib import Path

import pytest
import yaml
from convoy.configuration import override
from tests.examples.cosmoflow.test_settings import tree

from cosmoflow.command_line import parse
from cosmoflow.settings import read_settings


def test_flags_override_the_file(monkeypatch, tmp_path):
    monkeypatch.setenv("RUNS", "/somewhere")
    words = (
        "some.yaml --output-dir $RUNS/one --data-dir d --n-train 4 --n-valid 2 "
        "--micro-batch-size 2 --n-epochs 3 --apply-log 1 --staged-files 0 "
        "--iterations-per-loop 7 --num-ipus 2 --conv-size 8 --fc1-size 32 --fc2-size 16 "
        "--hidden-activation relu --dropout 0.5 --optimizer Adam --lr 1e-3 --precision bf16.32"
    )
    line = parse(words.split(), "train.py", tmp_path)
    settings = read_settings(override(tree(), line.overrides))
    assert settings.output_dir == Path("/somewhere/one")
    assert (settings.data.data_dir, settings.data.n_train) == (Path("d"), 4)
    assert settings.data.n_valid == 2
    assert (settings.data.micro_batch_size, settings.data.n_epochs) == (2, 3)
    assert (settings.data.apply_log, settings.data.staged_files) == (True, False)
    assert (settings.ipu_config.iterations_per_loop, settings.ipu_config.num_ipus) == (7, 2)
    assert settings.ipu_config.precision == "bf16.32"
    given = {name: settings.model.arguments[name] for name in ("conv_size", "fc1_size", "fc2_size")}
    assert given == {"conv_size": 8, "fc1_size": 32, "fc2_size": 16}
    assert settings.model.arguments["hidden_activation"] == "relu"
    assert settings.model.arguments["dropout"] == 0.5
    assert settings.optimizer.name == "Adam"
    assert settings.learning_rate.base_lr == 1e-3
    assert yaml.safe_load(yaml.safe_dump(override(tree(), line.overrides)))


def test_the_config_has_a_default_and_flags_without_effect_are_accepted(tmp_path):
    line = parse(["-d", "-v", "--print-fom"], "train.py", tmp_path)
    assert line.config == tmp_path / "configs" / "cosmo.yaml"
    assert (line.verbose, line.print_fom) == (True, True)
    assert line.distributed


def test_the_estimator_and_the_data_benchmark_exclude_each_other(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(["--use-estimator", "--data-benchmark"], "train.py", tmp_path)
    assert "not allowed with argument" in capsys.readouterr().err
