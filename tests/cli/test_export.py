"""Exports of runs of `convoy train`, checkpoints and Keras files."""

import keras
import numpy as np
import pytest
from convoy.cli.train import parse
from convoy.data.augment import normalise
from convoy.data.catalog import DATASETS
from convoy.layers import Preprocess
from convoy.serving import artifact
from convoy.serving.servable import Servable
from convoy.train.network import make_network
from convoy.train.recipe import as_recipe
from convoy.train.run_folder import RunFolder
from convoy_command import cli
from tests.serving.models import classifier

pytestmark = pytest.mark.integration

FLAGS = [
    "--dataset",
    "cifar10",
    "--model-name",
    "toy_model_bn",
    "--precision",
    "32.32",
    "--seed",
    "1",
]


@pytest.fixture
def run_of_training(tmp_path, monkeypatch):
    """The folder that `convoy train` leaves behind, and its network."""
    monkeypatch.chdir(tmp_path)
    options = parse(FLAGS)
    network = make_network(options, DATASETS["cifar10"], micro_batches=1)
    rng = np.random.default_rng(0)
    network.set_weights([rng.uniform(0.1, 0.5, value.shape) for value in network.get_weights()])
    folder = RunFolder(tmp_path / "run")
    folder.open(as_recipe(options))
    for epoch in (1.0, 2.0):
        folder.save(network, epoch)
    folder.close()
    return network


def test_a_run_of_convoy_train_is_exported(run_of_training, tmp_path, rng, capsys):
    command = ["export", "--export-dir", "models/cifar", "--batch-sizes", "4"]
    for checkpoint in ("run", "run/checkpoints/epoch_1.0.weights.h5"):
        assert cli.main([*command, "--checkpoint", checkpoint]) == 0
    assert capsys.readouterr().out == "models/cifar/1\nmodels/cifar/2\n"
    images = rng.integers(0, 256, (4, 32, 32, 3)).astype(np.uint8)
    expected = run_of_training(normalise(images, "standardise"))
    for version in ("1", "2"):
        served = Servable(tmp_path / "models" / "cifar" / version)
        (outputs,) = served.run({served.signature.inputs[0].name: images}).values()
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-6)
        assert served.class_names[:2] == ("airplane", "automobile")


@pytest.mark.slow
def test_random_weights_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [*FLAGS, "--batch-sizes", "1"]
    assert cli.main(["export", "--export-dir", "models", *words]) == 0
    assert "the weights are random" in capsys.readouterr().err


def test_keras_files_and_checkpoints_are_exported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = classifier()
    model.save("model.keras")
    command = ["export", "--batch-sizes", "1", "--preprocessing", "scale"]
    (tmp_path / "names").write_text("a\nb\nc\nd\ne\n")
    names = ["--class-names", "names"]
    export = [*command, *names, "--export-dir", "a", "--checkpoint", "model.keras"]
    assert cli.main(export) == 0
    cli.main(["checkpoint", "convert", "model.keras", "checkpoint"])
    assert cli.main([*command, "--export-dir", "b", "--checkpoint", "checkpoint"]) == 0
    image = np.arange(192, dtype=np.uint8).reshape(1, 8, 8, 3)
    expected = model(image / np.float32(255))
    for folder in ("a", "b"):
        found = Servable(tmp_path / folder / "1").run({"image": image})["output_0"]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert Servable(tmp_path / "a" / "1").class_names == tuple("abcde")


def test_16_bits_are_measured_on_samples_of_a_file(tmp_path, monkeypatch, rng, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    classifier().save("model.keras")
    np.savez("samples.npz", anything=rng.integers(0, 256, (6, 8, 8, 3)).astype(np.uint8))
    words = ["--checkpoint", "model.keras", "--preprocessing", "scale", "--batch-sizes", "4"]
    words += ["--precision", "bfloat16", "--samples", "samples.npz"]
    assert cli.main(["export", "--export-dir", "models", *words]) == 0
    assert capsys.readouterr().out == "models/1\n"
    assert "precision bfloat16: on 6 samples, the outputs differ from float32 by" in caplog.text
    found = artifact.read(tmp_path / "models" / "1")
    assert found.precision.policy == "bfloat16"
    assert found.precision.difference.samples == 6
    assert [spec.dtype for spec in found.signature.inputs + found.signature.outputs] == [
        "uint8",
        "float32",
    ]


@pytest.mark.slow
def test_16_bits_are_measured_on_the_images_of_a_run(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    words = ["--dataset", "digits", "--model", "cifar_resnet8", "--batch-sizes", "64"]
    assert cli.main(["export", "--export-dir", "models", "--precision", "bf16.16", *words]) == 0
    assert artifact.read(tmp_path / "models" / "1").precision.difference.samples > 64


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset", "digits", "--precision", "half"], "--precision: 'half' is not one of"),
        (["--dataset", "digits", "--samples", "none.npz"], "none.npz is not an .npz file"),
        (["--checkpoint", "none"], "--checkpoint none: there is no such file or folder."),
        (["--dataset", "digits", "--modle", "x"], "--modle is not a flag."),
        (["--checkpoint", "."], "has no model. Pass a .keras or .weights.h5 file"),
    ],
)
def test_wrong_words_are_one_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    try:
        status = cli.main(["export", "--export-dir", "models", *words])
    except SystemExit as stopped:
        status = stopped.code
    said = capsys.readouterr().err
    assert status == 2
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "models").exists()


def test_preprocessing_is_the_one_of_the_training():
    """What a server does before the network is what `convoy train` does on the host."""
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3)).astype(np.uint8)
    for kind in ("scale", "standardise", "imagenet"):
        found = Preprocess(kind)(keras.ops.cast(images, "float32"))
        np.testing.assert_allclose(found, normalise(images, kind), rtol=1e-4, atol=1e-5)
