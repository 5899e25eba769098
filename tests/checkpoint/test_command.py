"""`convoy checkpoint`: what people ask of checkpoints outside of a run."""

import re

import convoy
import keras
import numpy as np
import pytest
from convoy.checkpoint import store
from convoy.checkpoint.folder import Folder
from convoy_command import cli
from keras import layers

from .conftest import StopAt, StopError

# Keras numbers layers over all models of a process, and so by the tests that ran before.
KERNEL = re.compile(r"dense(_\d+)?/kernel$")


@pytest.fixture(scope="module")
def run(plain, tmp_path_factory):
    """A folder with the checkpoints of three epochs."""
    folder = tmp_path_factory.mktemp("run") / "state"
    plain.run(convoy.Checkpoints(folder, keep=9, recipe={"name": "a recipe"}))
    return folder


def call(*arguments):
    return cli.main(["checkpoint", *map(str, arguments)])


def weights(model):
    return [np.asarray(variable.value) for variable in model.weights]


def test_list_names_them_in_order(run, capsys):
    assert call("list", run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        f"epoch-000{epoch}-step-00000000" for epoch in (1, 2, 3)
    ]
    assert "val_loss" in lines[0]


def test_list_marks_the_best(plain, tmp_path, capsys):
    losses = plain.run(convoy.Checkpoints(tmp_path, keep=1, best="max:val_loss"))[0]["val_loss"]
    assert call("list", tmp_path) == 0
    best, newest = capsys.readouterr().out.splitlines()
    assert best.startswith(f"epoch-000{np.argmax(losses) + 1}-")
    assert best.endswith("  (best)")
    assert "(best)" not in newest


def test_show_ends_with_the_hash_of_the_newest(run, capsys):
    assert call("show", run, "--hash") == 0
    lines = capsys.readouterr().out.splitlines()
    newest = Folder(run).at(Folder(run).positions()[-1])
    assert lines[-1] == store.state_hash(store.read_manifest(newest))
    assert any(line.startswith("recipe") and "a recipe" in line for line in lines)
    assert any(KERNEL.search(line) for line in lines)


def test_the_hash_is_equal_for_equal_runs_and_only_for_them(plain, run, tmp_path, capsys):
    plain.run(convoy.Checkpoints(tmp_path / "same", every=2, recipe={"name": "other"}))
    plain.run(convoy.Checkpoints(tmp_path / "other"), shuffle=False)
    hashes = []
    for folder in (run, tmp_path / "same", tmp_path / "other"):
        assert call("show", folder, "--hash") == 0
        hashes.append(capsys.readouterr().out.splitlines()[-1])
    assert hashes[0] == hashes[1] != hashes[2]


def test_verify_tells_whole_ones_from_damaged_ones(plain, tmp_path, capsys):
    plain.run(convoy.Checkpoints(tmp_path), epochs=2)
    assert call("verify", tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["whole", "whole"]
    (tmp_path / "epoch-0001-step-00000000" / store.ARRAYS).write_bytes(b"damaged")
    assert call("verify", tmp_path) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert "DAMAGED" in first
    assert second.endswith("whole")


@pytest.mark.parametrize("action", ["list", "show", "verify"])
def test_a_folder_without_checkpoints_is_one_line_of_error(tmp_path, capsys, action):
    assert call(action, tmp_path / "nothing") == 1
    assert capsys.readouterr().err == (
        f"convoy checkpoint: There is no folder {tmp_path / 'nothing'}.\n"
    )
    (tmp_path / "empty").mkdir()
    if action != "verify":
        assert call(action, tmp_path / "empty") == 1
        shown = capsys.readouterr().err
        assert shown.startswith("convoy checkpoint: ")
        assert shown.count("\n") == 1


@pytest.mark.parametrize("action", ["list", "show"])
def test_the_folder_above_is_answered_with_the_one_that_has_some(run, capsys, action):
    assert call(action, run.parent) == 1
    assert capsys.readouterr().err.endswith(f" There are some in {run}.\n")


def test_convert_to_keras_and_back(plain, run, tmp_path, capsys):
    plain.run(epochs=3)
    expected = weights(plain.model)
    assert call("convert", run, tmp_path / "model.keras") == 0
    model = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_equal(weights(model), expected)
    moments = [np.asarray(v.value) for v in plain.model.optimizer.variables]
    np.testing.assert_equal([np.asarray(v.value) for v in model.optimizer.variables], moments)

    back = tmp_path / "back" / "epoch-0000-step-00000000"
    assert call("convert", tmp_path / "model.keras", back) == 0
    assert call("show", back) == 0
    # A run that begins there has these weights at its start, and all else is its own.
    with pytest.raises(StopError):
        plain.run(convoy.Checkpoints(back.parent), StopAt(0, 0), spoil=True)
    np.testing.assert_equal(weights(plain.model), expected)


def test_convert_to_weights_and_back(plain, run, tmp_path):
    plain.run(epochs=3)
    expected = weights(plain.model)
    weights_file = tmp_path / "model.weights.h5"
    assert call("convert", run, weights_file) == 0
    plain.run(epochs=1)
    plain.model.load_weights(weights_file)
    np.testing.assert_equal(weights(plain.model), expected)
    assert call("convert", weights_file, tmp_path / "back") == 1
    assert call("convert", run, tmp_path / "model.keras") == 0
    back = tmp_path / "back"
    assert call("convert", weights_file, back, "--model", tmp_path / "model.keras") == 0
    trainable = [
        [array for name, array in content.arrays.items() if name.startswith("trainable/")]
        for content in (store.read(back), Folder(run).newest()[1])
    ]
    np.testing.assert_equal(*trainable)


def test_average_is_the_mean_of_the_weights(run, tmp_path):
    assert call("average", run, "--output", tmp_path / "mean") == 0
    folder = Folder(run)
    contents = [store.read(folder.at(position)) for position in folder.positions()]
    mean = store.read(tmp_path / "mean").arrays
    assert {name.split("/")[0] for name in mean} == {"trainable", "non_trainable"}
    name = next(name for name in mean if KERNEL.search(name))
    expected = np.mean([content.arrays[name].astype("float64") for content in contents], axis=0)
    np.testing.assert_array_equal(mean[name], expected.astype("float32"))
    assert call("average", run, "--output", tmp_path / "mean.keras") == 0
    kernel = keras.models.load_model(tmp_path / "mean.keras").layers[0].kernel
    np.testing.assert_array_equal(np.asarray(kernel.value), mean[name])


def test_nothing_is_written_over(run, capsys):
    assert call("convert", run, run) == 1
    assert "is there already" in capsys.readouterr().err


def test_a_description_with_code_in_it_is_refused(tmp_path, capsys):
    model = keras.Sequential([keras.Input((2,)), layers.Lambda(lambda x: x * 2)])
    described = model.to_json()
    store.write(tmp_path / "harm", store.Content({}, {"weights_only": True}, {}, described))
    assert call("convert", tmp_path / "harm", tmp_path / "out.keras") == 1
    assert "lambda" in capsys.readouterr().err.lower()
    assert not (tmp_path / "out.keras").exists()
