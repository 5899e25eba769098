import argparse
import re
import runpy
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from convoy.report.files import read
from tests.examples.cifar import write_cifar

SCRIPT = Path(__file__).parents[2] / "examples" / "estimator_cnn" / "ipu_estimator_cnn.py"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_cifar(tmp_path_factory.mktemp("cifar"), per_batch=16, test=32)


@pytest.fixture(scope="module")
def functions():
    return runpy.run_path(str(SCRIPT))


def test_flags_have_the_defaults_of_the_page(functions, monkeypatch):
    monkeypatch.setattr("sys.argv", ["ipu_estimator_cnn.py"])
    assert vars(functions["parse_arguments"]()) == {
        "batch_size": 32,
        "batches_per_step": 100,
        "epochs": 100,
        "learning_rate": 0.01,
        "test_only": False,
        "train_only": False,
        "log_interval": 3,
        "summary_interval": 1,
        "model_dir": None,
        "generated_data": False,
        "dataset_path": ".",
    }


@pytest.mark.parametrize(
    ("batch", "loop", "epochs", "training", "testing"),
    [
        (32, 100, 100, 156_300, 300),
        (16, 500, 100, 313_000, 500),
        (32, 100, 1, 1_600, 300),
        (13, 89, 1, 3_916, 712),
    ],
)
def test_steps_fill_device_loops(functions, batch, loop, epochs, training, testing):
    arguments = argparse.Namespace(batch_size=batch, batches_per_step=loop, epochs=epochs)
    assert functions["training_steps"](50_000, arguments) == training
    assert functions["test_steps"](10_000, arguments) == testing


def test_missing_data_is_one_line_with_the_flags_of_this_script(functions, tmp_path, monkeypatch):
    def download():
        raise OSError("no network")

    monkeypatch.setattr(keras.datasets.cifar10, "load_data", download)
    monkeypatch.setattr("sys.argv", ["ipu_estimator_cnn.py", "--dataset-path", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        functions["main"]()
    message = stopped.value.code
    assert re.match(rf"ipu_estimator_cnn\.py: error: cifar10 is not in {tmp_path}, ", message)
    assert message.endswith("as --dataset-path. --generated-data needs no data.")
    assert "\n" not in message
    assert "--synthetic-data" not in message


def run(folder, images, *flags, environment=None):
    return subprocess.run(
        [sys.executable, SCRIPT, "--dataset-path", images, *flags],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_trains_tests_and_reports(images, tmp_path, monkeypatch):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all":"true"}')
    flags = ("--batch-size", "8", "--batches-per-step", "2", "--log-interval", "0.001")
    flags += ("--learning-rate", "0.001")
    done = run(tmp_path, images, *flags, "--epochs", "0.5", "--model-dir", "run")
    assert done.returncode == 0, done.stderr
    # 5 steps of 80 images in batches of 8, up to whole loops; then 4 of 32.
    assert sorted(path.name for path in (tmp_path / "run").glob("epoch-*")) == [
        "epoch-0000-step-00000006"
    ]
    assert len(re.findall(r"^INFO:convoy\.estimator: loss = \d+\.\d{3}$", done.stderr, re.M)) == 3
    patterns = (
        r"Training\.\.\.",
        r"Took \d+\.\d\d seconds to compile and run",
        r"Testing\.\.\.",
        r"Evaluating on 32 examples",
        r"Test loss: \d+(\.\d+)?",
        r"Test accuracy: \d+\.\d\d%",
        r"Took \d+\.\d\d seconds to compile and run",
    )
    for line, pattern in zip(done.stdout.splitlines(), patterns, strict=True):
        assert re.fullmatch(pattern, line)
    older, newer = sorted(tmp_path.glob("tf_report__*"))
    for folder, mode, steps in ((older, "train", 6), (newer, "evaluate", 4)):
        report = read(folder)
        assert {program["name"] for program in report.programs} == {mode}
        assert report.run["totals"]["devices"][mode]["steps"] == steps
        assert report.run["state"] == "ended"
    assert read(older).run["runs"][0]["model"]["parameters"] == 1_250_858


@pytest.mark.slow
def test_a_checkpoint_of_another_run_can_be_tested(images, tmp_path):
    flags = ("--batch-size", "8", "--batches-per-step", "2", "--model-dir", "run")
    trained = run(tmp_path, images, *flags, "--epochs", "0.1", "--train-only")
    assert trained.returncode == 0, trained.stderr
    assert "Testing" not in trained.stdout
    first, second = (run(tmp_path, images, *flags, "--test-only") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert "Training" not in first.stdout
    assert re.findall("Test loss.*", first.stdout) == re.findall("Test loss.*", second.stdout)
    untrained = run(tmp_path, images, *flags[:-1], "elsewhere", "--test-only")
    assert untrained.returncode == 0, untrained.stderr
    assert "elsewhere has no checkpoint: the weights are initial ones" in untrained.stderr
    assert "Test accuracy: " in untrained.stdout


@pytest.mark.slow
def test_fractional_epochs_and_generated_data_are_accepted(images, tmp_path):
    flags = ("--batch-size", "13", "--batches-per-step", "9", "--epochs", "0.001", "--train-only")
    done = run(tmp_path, images, *flags, "--generated-data")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"Training\.\.\.\nTook \d+\.\d\d seconds to compile and run\n", done.stdout)
    nothing = run(tmp_path, images, "--train-only", "--test-only")
    assert (nothing.returncode, nothing.stdout) == (0, "")
