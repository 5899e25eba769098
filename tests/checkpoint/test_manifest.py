"""Manifests that Convoy did not write, with a right checksum, are damage in one line."""

import hashlib
import os

import pytest
from convoy.checkpoint import DamagedError, store

from .conftest import FIRST, SECOND, newest_seed
from .crafted import deleting, rewrite, setting

KERNEL = ("arrays", "trainable/0/kernel")

CRAFTED = {
    "no body": lambda body: [],
    "no format": deleting("format"),
    "another type of version": setting("1", "version"),
    "no state": deleting("state"),
    "a state that is a list": setting([], "state"),
    "an epoch that is text": setting("3", "state", "epoch"),
    "a negative step": setting(-1, "state", "step"),
    "logs that are a list": setting([1.0], "state", "logs"),
    "callbacks without type": setting([{}], "state", "callbacks"),
    "callbacks that are numbers": setting([1], "state", "callbacks"),
    "no arrays": setting(None, "arrays"),
    "an array without checksum": deleting(*KERNEL, "sha256"),
    "an array without name": lambda body: body["arrays"].update({"": body["arrays"][KERNEL[1]]}),
    "a shape that is text": setting("3x5", *KERNEL, "shape"),
    "a negative shape": setting([-3, -5], *KERNEL, "shape"),
    "another shape": setting([5, 3], *KERNEL, "shape"),
    "another type": setting("I32", *KERNEL, "dtype"),
    "files that are a list": setting([store.MODEL], "files"),
    "an absolute path": setting({"/etc/hostname": "0" * 64}, "files"),
    "a path outside": setting({"../epoch-0000-step-00000004/model.json": "0" * 64}, "files"),
    "versions that are a number": setting(1, "about", "versions"),
    "an optimizer that is text": setting("adam", "about", "optimizer"),
    "no name": deleting("name"),
}


@pytest.mark.parametrize("change", CRAFTED.values(), ids=CRAFTED.keys())
def test_a_crafted_manifest_is_damage_in_one_line(folder, call, capsys, change):
    rewrite(folder.at(SECOND), change)
    with pytest.raises(DamagedError, match=SECOND.name) as raised:
        store.read(folder.at(SECOND))
    assert "\n" not in str(raised.value)
    with pytest.warns(UserWarning, match="The checkpoint before it is used"):
        assert newest_seed(folder) == 1
    assert call("verify", folder.path) == 1
    shown = capsys.readouterr()
    assert f"{FIRST.name}  intact" in shown.out
    assert f"{SECOND.name}  DAMAGED" in shown.out
    assert shown.out.count("\n") == 2
    assert call("list", folder.path) == 0


def test_a_file_outside_of_the_folder_is_not_read(folder, tmp_path):
    """The checksum is that of the file, so nothing but the path is wrong."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    checksum = hashlib.sha256(secret.read_bytes()).hexdigest()
    rewrite(folder.at(SECOND), setting({str(secret): checksum}, "files"))
    with pytest.raises(DamagedError, match="files"):
        store.read(folder.at(SECOND))


def test_nesting_without_end_is_damage(folder):
    data = b'{"body": ' + b"[" * 100_000 + b"]" * 100_000 + b', "sha256": ""}'
    (folder.at(SECOND) / store.MANIFEST).write_bytes(data)
    with pytest.raises(DamagedError, match="it is not a manifest"):
        store.read(folder.at(SECOND))


@pytest.mark.parametrize("name", [store.MANIFEST, store.ARRAYS, store.MODEL])
def test_a_pipe_in_place_of_a_file_is_damage_and_does_not_block(folder, name):
    (folder.at(SECOND) / name).unlink()
    os.mkfifo(folder.at(SECOND) / name)
    with pytest.raises(DamagedError, match="not a regular file"):
        store.read(folder.at(SECOND))


def test_a_model_that_is_not_text_is_damage(folder):
    data = b"\xff\xfe\xff"
    (folder.at(SECOND) / store.MODEL).write_bytes(data)
    checksum = hashlib.sha256(data).hexdigest()
    rewrite(folder.at(SECOND), setting({store.MODEL: checksum}, "files"))
    with pytest.raises(DamagedError, match="it is not text"):
        store.read(folder.at(SECOND))


def test_what_is_unknown_but_harmless_is_read(folder):
    rewrite(folder.at(SECOND), setting({"of": "a later version"}, "state", "new"))
    assert newest_seed(folder) == 2
