import re
import runpy
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from tests.examples.cifar import write_cifar

FOLDER = Path(__file__).parents[2] / "examples" / "cifar10"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_cifar(tmp_path_factory.mktemp("cifar"), per_batch=32, test=32)


def run(images, script, *flags):
    done = subprocess.run(
        [sys.executable, script, "--epochs", "1", "--dataset-path", images, *flags],
        cwd=FOLDER,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BEGINNING = ["Loading the data...", "Initialize the model"]
STAGES = ("--batch-size", "4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "flags", "lines"),
    [
        ("cifar10_ipu_strategy.py", (), [*BEGINNING, "Training...", "Check the result"]),
        ("cifar10_ipu_estimator.py", (), [*BEGINNING, "Training...", "Check the result..."]),
        ("cifar10_ipuestimator.py", (), [*BEGINNING, "Training...", "Check the result..."]),
        ("cifar10_estimator_replica.py", (), [*BEGINNING, "Training...", "Check the result..."]),
        (
            "cifar10_ipu_estimator_replica.py",
            (),
            [*BEGINNING, "Training...", "Check the result..."],
        ),
        (
            "cifar10_replica.py",
            ("--ipus", "4", "--batch-size", "8"),
            [*BEGINNING, "Training...", "Check the result..."],
        ),
        ("cifar10_pipeline_estimator.py", STAGES, [*BEGINNING, "Check the result..."]),
        ("cifar10_pipeline.py", STAGES, [*BEGINNING, "Check the result..."]),
        (
            "cifar10_ipu_pipeline_estimator.py",
            (*STAGES, "--pipeline-depth", "4", "--model_shard_position", "13"),
            [*BEGINNING, "Check the result..."],
        ),
    ],
)
def test_every_script_prints_what_its_page_says(images, script, flags, lines):
    printed = run(images, script, *flags)
    own = [line for line in printed.splitlines() if line in {*lines, "Training..."}]
    assert own == lines
    (accuracy,) = re.findall(r"^Validation accuracy: ([\d.]+)%$", printed, re.MULTILINE)
    assert 0 <= float(accuracy) <= 100
    assert len(re.findall(r"^Validation loss: [\d.]+$", printed, re.MULTILINE)) == 1


def test_every_alternative_name_runs_a_listed_script():
    page = (FOLDER / "README.md").read_text()
    assert len(list(FOLDER.glob("cifar10_*.py"))) == 9
    for script in FOLDER.glob("cifar10_*.py"):
        assert script.name in page
        (target,) = set(re.findall(r'with_name\("(.*?)"\)', script.read_text())) or {script.name}
        assert (FOLDER / target).exists()


def test_an_epoch_is_whole_weight_updates(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    script = runpy.run_path(str(FOLDER / "cifar10_pipeline_estimator.py"))
    assert script["whole_steps"](10_000, batch=16, depth=8) == 624
    assert len(script["layers"]()) == 18


@pytest.mark.slow
def test_the_network_has_as_many_weights_as_its_page_says(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    script = runpy.run_path(str(FOLDER / "network.py"))
    network = keras.Sequential([keras.Input((32, 32, 3)), *script["layers"]()])
    assert network.count_params() == 1_260_106
