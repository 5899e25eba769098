"""Settings in YAML files and flags; invalid ones are refused by name."""

from pathlib import Path

import pytest
from convoy.configuration import read_yaml

from cosmoflow.settings import read_settings

CONFIGS = Path(__file__).parents[3] / "examples" / "cosmoflow" / "configs"


def tree(**sections):
    made = {
        "data": {"name": "dummy", "n_train": 8, "sample_shape": [8, 8, 8, 4]},
        "model": {"name": "cosmoflow"},
        "optimizer": {"name": "SGD", "lr": 0.1},
    }
    for section, values in sections.items():
        made[section] = made.get(section, {}) | values if isinstance(values, dict) else values
    return made


def test_graphcores_file_has_its_settings():
    settings = read_settings(read_yaml(CONFIGS / "graphcore.yaml"))
    data = settings.data
    assert (data.name, data.n_train, data.n_valid, data.n_epochs) == ("dummy", 10_000, 0, 30)
    assert (data.sample_shape, data.target_shape) == ((64, 64, 64, 4), (4,))
    assert (data.micro_batch_size, data.shard) == (1, True)
    assert settings.model.arguments["dropout"] == 0.2
    assert (settings.optimizer.name, settings.optimizer.arguments) == ("Adadelta", {})
    assert (settings.learning_rate.base_lr, settings.learning_rate.scaling) == (0.5, "none")
    assert (settings.train.loss, settings.train.metrics) == ("mse", ("mae",))
    assert (settings.ipu_config.iterations_per_loop, settings.ipu_config.num_ipus) == (5000, 1)


def test_mlperfs_recipe_has_the_settings_of_its_reference():
    settings = read_settings(read_yaml(CONFIGS / "mlperf.yaml"))
    assert settings.data.sample_shape == (128, 128, 128, 4)
    assert (settings.data.n_train, settings.data.n_valid) == (524_288, 65_536)
    assert (settings.data.micro_batch_size, settings.data.n_epochs) == (4, 128)
    assert settings.data.apply_log
    assert (settings.optimizer.name, settings.optimizer.arguments) == ("SGD", {"momentum": 0.9})
    rate = settings.learning_rate
    assert (rate.base_lr, rate.scaling, rate.base_batch_size) == (0.001, "linear", 64)
    assert (rate.n_warmup_epochs, rate.decay_schedule) == (4, {32: 0.25, 64: 0.125})
    assert settings.train.target_mae == 0.124


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_configs_of_the_example_are_valid(path):
    read_settings(read_yaml(path))


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"data": {"n_trian": 3}}, r"^data\.n_trian is unknown\. Did you mean n_train"),
        ({"data": {"zzz": 3}}, r"^data\.zzz is unknown\. Known: apply_log, data_dir"),
        ({"extra": {}}, r"^extra is unknown\. Known: data, ipu_config"),
        ({"data": {"n_train": "many"}}, r"data\.n_train: 'many' is not a whole number"),
        ({"data": {"n_train": True}}, r"data\.n_train: True is not a whole number"),
        ({"data": {"n_train": 0}}, r"data\.n_train 0: pass 1 or more"),
        ({"data": {"shard": "perhaps"}}, r"data\.shard: 'perhaps' is neither true nor false"),
        ({"data": {"sample_shape": 64}}, r"data\.sample_shape: 64 is not a list"),
        (
            {"data": {"sample_shape": [64, 64, 4]}},
            r"sample_shape \[64, 64, 4\] is not three sides and channels\. Set",
        ),
        ({"data": {"target_shape": [2, 2]}}, r"data: target_shape \[2, 2\] is not a single number"),
        ({"data": {"name": "cosmos"}}, r"data\.name: 'cosmos' is not one of dummy, cosmo"),
        ({"data": {"name": "cosmo"}}, r"data: name cosmo needs data_dir\. .* --data-dir"),
        ({"data": {"shuffle_valid": True}}, r"data: shuffle_valid has no effect"),
        ({"data": 3}, r"data: 3 is not a section"),
        ({"model": {"input_shape": [4, 4, 4, 1]}}, r"input_shape \[4, 4, 4, 1\] differs from data"),
        ({"model": {"input_shape": 64}}, r"model\.input_shape 64 differs from data\.sample_shape"),
        ({"model": {"target_size": 3}}, r"model\.target_size 3 differs from data\.target_shape 4"),
        ({"optimizer": {"lr": None}}, r"optimizer\.lr is missing"),
        ({"optimizer": {"lr": "fast"}}, r"optimizer\.lr: 'fast' is not a number"),
        ({"optimizer": {"lr": -1}}, r"optimizer\.lr -1: pass more than 0"),
        ({"optimizer": {"lr_scaling": "cubic"}}, r"lr_scaling: 'cubic' is not one of none, lin"),
        ({"lr_schedule": {"decay_schedule": {1: "x"}}}, r"decay_schedule\.1: 'x' is not a number"),
        ({"train": {"metrics": "mae"}}, r"train\.metrics: 'mae' is not a list"),
        ({"ipu_config": {"stages": 0}}, r"ipu_config\.stages 0: pass 1 or more"),
    ],
)
def test_an_invalid_setting_is_named(sections, problem):
    with pytest.raises(ValueError, match=problem):
        read_settings(tree(**sections))


@pytest.mark.parametrize("missing", ["data.n_train", "model.name", "optimizer.name"])
def test_a_missing_setting_is_named(missing):
    section, name = missing.split(".")
    whole = tree()
    del whole[section][name]
    with pytest.raises(ValueError, match=rf"{missing} is missing"):
        read_settings(whole)
