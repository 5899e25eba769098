"""The programs of examples/cnns."""

import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from convoy.train.recipe import RECIPES, recipes_in
from tests.examples.cifar import write_cifar

FOLDER = Path(__file__).parents[2] / "examples" / "cnns"


def run(script, *words, folder):
    return subprocess.run(
        [sys.executable, FOLDER / script, *map(str, words)],
        cwd=folder,
        env=os.environ | {"CONVOY_COMPILATION_CACHE": "0"},
        capture_output=True,
        text=True,
    )


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def test_recipes_are_those_of_the_package():
    assert recipes_in(FOLDER / "configs.yml") == recipes_in(RECIPES)


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ([], 16),
        (["--config", "resnet50_infer_bs16"], 16),
        (["--config", "resnet50_infer_bs32"], 32),
        (["--config", "resnet50_infer_bs1"], 1),
        (["--micro-batch-size", "4"], 4),
        (["--config", "resnet50_infer_bs32", "--model-batch-size", "8"], 8),
    ],
)
def test_a_model_is_exported_for_the_batch_size_of_its_recipe(words, size, monkeypatch):
    monkeypatch.setattr("sys.argv", ["send_request.py", *words])
    program = runpy.run_path(str(FOLDER / "send_request.py"))
    flags, training = program["read_flags"]()
    options = program["read_options"](flags, training)
    assert program["model_batch_size"](flags, training, options) == size


def test_the_help_names_the_recipe(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["send_request.py", "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(FOLDER / "send_request.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "--config NAME" in shown
    assert "--dataset-path DIR" in shown


@pytest.mark.slow
def test_test_images_are_sent_to_the_exported_model(tmp_path):
    images = write_cifar(tmp_path / "data", per_batch=8, test=32)
    words = ("--model", "toy_model", "--precision", "32.32", "--dataset-path", images)
    words += ("--batch-size", 3, "--num-threads", 3, "--num-images", 30, "--port", free_port())
    done = run("send_request.py", *words, "--micro-batch-size", 4, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Exporting toy_model with batch size 4" in done.stdout
    assert "Processed num_images * num_threads: 30 * 3 = 90" in done.stdout
    assert re.search(r"^Accuracy: [\d.]+%$", done.stdout, re.M)
    assert "Traceback" not in done.stderr


NETWORK = """
import keras


class Unknown(keras.layers.Layer):
    def call(self, x):
        return x


def network(shape, classes):
    x = keras.Input(shape)
    y = keras.layers.Flatten()(Unknown()(x))
    return keras.Model(x, keras.layers.Dense(classes, "softmax")(y))
"""


@pytest.mark.slow
def test_a_run_that_measured_slower_programs_fails(tmp_path):
    (tmp_path / "own.py").write_text(NETWORK)
    words = (
        "--model",
        "own:network",
        "--precision",
        "32.32",
        "--num-images",
        4,
        "--port",
        free_port(),
    )
    done = run("send_request.py", *words, folder=tmp_path)
    assert done.returncode == 1
    assert "Average throughput" in done.stdout
    assert "send_request.py: error: slower programs were measured" in done.stderr
    assert "Could not locate class 'Unknown'" in done.stderr


def test_the_documents_wrong_command_ends_with_a_value_error(tmp_path):
    words = "--model cifar_resnet8 --num-epochs 5 --precision 16.16 --micro-batch-size 8 "
    words += "--validation False --half-partials True --gradient-accumulation 8 "
    words += "--logs-per-epoch 1/2"
    done = run("train.py", *words.split(), folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "train.py: error: ValueError: It is not possible to log 2.0 epochs a time for 5 epochs\n"
    )
