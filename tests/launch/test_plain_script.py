"""The strategy around a script that does not use Convoy, in this process."""

import sys

import keras
import pytest
from convoy.launch import plain_script


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a script in a strategy for so many devices, and return its variables."""

    def run_script(text, devices):
        script, seen = tmp_path / "script.py", {}
        script.write_text(f"import keras, sys\nseen = keras.script_variables\n{text}")
        monkeypatch.setattr(keras, "script_variables", seen, raising=False)
        monkeypatch.setenv("CONVOY_DEVICES", str(devices))
        monkeypatch.setattr(sys, "argv", ["plain_script.py", str(script), "--epochs", "3"])
        plain_script.main()
        return seen

    return run_script


def test_the_script_receives_its_own_arguments(run, tmp_path):
    seen = run("seen['words'] = sys.argv", devices=1)
    assert seen["words"] == [str(tmp_path / "script.py"), "--epochs", "3"]


def test_models_use_all_devices_and_keep_the_global_batch_size(run):
    model = run("seen['model'] = keras.Sequential([keras.layers.Dense(1)])", devices=2)["model"]
    config = model.set_gradient_accumulation.__self__.host_loop.config
    assert (config.replicas, config.batch, config.batch_norm_group) == (2, "global", 2)
