"""Lists, descriptions and verification of checkpoints, by `convoy checkpoint`."""

import re

import convoy
import numpy as np
import pytest
from convoy.checkpoint import store
from convoy.checkpoint.folder import Folder

# Keras numbers layers over all models of a process, and so by the tests that ran before.
KERNEL = re.compile(r"dense(_\d+)?/kernel$")


def test_list_names_them_in_order(call, run, capsys):
    assert call("list", run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        f"epoch-000{epoch}-step-00000000" for epoch in (1, 2, 3)
    ]
    assert "val_loss" in lines[0]


def test_list_marks_the_best(call, plain, tmp_path, capsys):
    losses = plain.run(convoy.Checkpoints(tmp_path, keep=1, best="max:val_loss"))[0]["val_loss"]
    assert call("list", tmp_path) == 0
    best, newest = capsys.readouterr().out.splitlines()
    assert best.startswith(f"epoch-000{np.argmax(losses) + 1}-")
    assert best.endswith("  (best)")
    assert "(best)" not in newest


def test_show_ends_with_the_hash_of_the_newest(call, run, capsys):
    assert call("show", run, "--hash") == 0
    lines = capsys.readouterr().out.splitlines()
    newest = Folder(run).at(Folder(run).positions()[-1])
    assert lines[-1] == store.state_hash(store.read_manifest(newest))
    assert any(line.startswith("recipe") and "a recipe" in line for line in lines)
    assert any(KERNEL.search(line) for line in lines)


def test_the_hash_is_equal_for_equal_runs_and_only_for_them(call, plain, run, tmp_path, capsys):
    plain.run(convoy.Checkpoints(tmp_path / "same", every=2, recipe={"name": "other"}))
    plain.run(convoy.Checkpoints(tmp_path / "other"), shuffle=False)
    hashes = []
    for folder in (run, tmp_path / "same", tmp_path / "other"):
        assert call("show", folder, "--hash") == 0
        hashes.append(capsys.readouterr().out.splitlines()[-1])
    assert hashes[0] == hashes[1] != hashes[2]


def test_verify_distinguishes_intact_and_damaged_checkpoints(call, plain, tmp_path, capsys):
    plain.run(convoy.Checkpoints(tmp_path), epochs=2)
    assert call("verify", tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["intact", "intact"]
    (tmp_path / "epoch-0001-step-00000000" / store.ARRAYS).write_bytes(b"damaged")
    assert call("verify", tmp_path) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert "DAMAGED" in first
    assert second.endswith("intact")


@pytest.mark.parametrize("action", ["list", "show", "verify"])
def test_a_folder_without_checkpoints_is_one_line_of_error(call, tmp_path, capsys, action):
    assert call(action, tmp_path / "nothing") == 1
    assert capsys.readouterr().err == (
        f"convoy checkpoint: error: There is no folder {tmp_path / 'nothing'}. "
        "Pass one that exists.\n"
    )
    (tmp_path / "empty").mkdir()
    if action != "verify":
        assert call(action, tmp_path / "empty") == 1
        shown = capsys.readouterr().err
        assert shown.startswith("convoy checkpoint: error: ")
        assert shown.count("\n") == 1


@pytest.mark.parametrize("action", ["list", "show"])
def test_the_folder_above_is_answered_with_the_one_that_has_some(call, run, capsys, action):
    assert call(action, run.parent) == 1
    assert capsys.readouterr().err.endswith(f" There are some in {run}.\n")
