"""A checkpoint on disk is whole, or known not to be."""

import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from convoy import atomic_file
from convoy.checkpoint import CheckpointError, DamagedError, store, tensors
from convoy.checkpoint.folder import Folder, Position

from .conftest import FIRST, SECOND, content, fill, newest_seed

FILES = [store.MANIFEST, store.ARRAYS, store.MODEL]


def assert_falls_back(folder, match):
    with pytest.raises(DamagedError, match=match):
        store.read(folder.at(SECOND))
    with pytest.warns(UserWarning, match=f"{SECOND.name}.*The checkpoint before it is used"):
        assert newest_seed(folder) == 1


def test_what_is_read_is_what_was_written(folder):
    position, found = folder.newest()
    assert position == SECOND
    wanted = content(2)
    assert list(found.arrays) == list(wanted.arrays)
    for name, array in wanted.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].shape == array.shape
        assert found.arrays[name].tobytes() == array.tobytes()
    assert found.state["logs"]["loss"] == wanted.state["logs"]["loss"]
    assert np.isnan(found.state["logs"]["bad"])
    assert found.state["pair"] == [1, 2]
    assert (found.about, found.model) == (wanted.about, wanted.model)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_anywhere_is_found(folder, name):
    file = folder.at(SECOND) / name
    whole = file.read_bytes()
    for place in range(0, len(whole), 1 if len(whole) < 100 else 7):
        for change in (0x01, 0x80):
            damaged = bytearray(whole)
            damaged[place] ^= change
            file.write_bytes(damaged)
            with pytest.raises(DamagedError, match=SECOND.name):
                store.read(folder.at(SECOND))
    assert_falls_back(folder, "damaged")
    file.write_bytes(whole)
    assert newest_seed(folder) == 2


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_anywhere_is_found(folder, name):
    file = folder.at(SECOND) / name
    whole = file.read_bytes()
    for length in range(0, len(whole), 1 if len(whole) < 100 else 11):
        file.write_bytes(whole[:length])
        with pytest.raises(DamagedError, match=SECOND.name):
            store.read(folder.at(SECOND))
    assert_falls_back(folder, "damaged|truncated")


@pytest.mark.parametrize("name", FILES)
def test_a_longer_file_is_found(folder, name):
    with (folder.at(SECOND) / name).open("ab") as file:
        file.write(b" ")
    assert_falls_back(folder, "damaged")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_found(folder, name):
    (folder.at(SECOND) / name).unlink()
    assert_falls_back(folder, "cannot be read: No such file")


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_place_of_a_file_is_found(folder, name):
    (folder.at(SECOND) / name).unlink()
    (folder.at(SECOND) / name).mkdir()
    assert_falls_back(folder, "cannot be read: Is a directory")


@pytest.mark.parametrize("name", [store.MANIFEST, store.ARRAYS])
def test_a_file_of_another_checkpoint_is_found(folder, name):
    shutil.copy(folder.at(FIRST) / name, folder.at(SECOND) / name)
    assert_falls_back(folder, "damaged|renamed")


def test_arrays_that_were_swapped_within_the_file_are_found(folder):
    file = folder.at(SECOND) / store.ARRAYS
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    file.write_bytes(data[:start] + data[start + 4 : start + 8] + data[start : start + 4])
    assert_falls_back(folder, "damaged|truncated")


def test_a_newer_format_is_refused_by_name(folder, monkeypatch):
    monkeypatch.setattr(store, "VERSION", 2)
    folder.write(Position(2, 0), content(3))
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"version 2; this .* up to version 1"):
        folder.newest()


def test_a_pickle_is_not_loaded(folder):
    """Neither file type has room for one: what is not JSON or plain numbers is refused."""

    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(folder.path / "harm"),)

    np.save(folder.path / "harm.npy", np.array([Harm()], dtype=object), allow_pickle=True)
    data = (folder.path / "harm.npy").read_bytes()
    for name in FILES:
        (folder.at(SECOND) / name).write_bytes(data)
    with pytest.raises(DamagedError):
        store.read(folder.at(SECOND))
    assert not (folder.path / "harm").exists()


# Writing --------------------------------------------------------------------------------------


def test_a_full_disk_is_an_error_and_leaves_the_earlier_ones(folder):
    """A limit on the size of files: to a program much the same as a disk that fills up."""
    large = content(3)
    arrays = dict(large.arrays) | {"more": np.zeros(100_000, "float32")}
    before = sorted(folder.path.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"could not be written: File too large.*Earlier"):
            folder.write(Position(2, 0), store.Checkpoint(arrays, {}, {}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(folder.path.iterdir()) == before
    assert newest_seed(folder) == 2


def test_a_file_system_without_room_is_an_error_and_leaves_the_earlier_ones(small_disk):
    folder = Folder(small_disk / "run")
    folder.open_for_writing()
    folder.write(FIRST, content(1))
    before = sorted(folder.path.iterdir())
    arrays = dict(content(3).arrays) | {"more": np.zeros(1 << 20, "uint8")}
    with pytest.raises(CheckpointError, match=r"could not be written: No space left on device"):
        folder.write(SECOND, store.Checkpoint(arrays, {}, {}))
    assert sorted(folder.path.iterdir()) == before
    filler = fill(small_disk)
    with pytest.raises(CheckpointError, match=r"could not be written: No space left on device"):
        folder.write(SECOND, content(2))
    assert sorted(folder.path.iterdir()) == before
    assert newest_seed(folder) == 1
    filler.unlink()
    folder.write(SECOND, content(2))
    assert newest_seed(folder) == 2
    folder.close()


@pytest.mark.parametrize("step", ["mkdir", "arrays", "manifest", "sync", "rename"])
def test_a_failure_at_any_point_of_writing_leaves_the_earlier_ones(folder, step, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    targets = {
        "mkdir": (Path, "mkdir"),
        "arrays": (tensors, "write"),
        "manifest": (store, "write_synced"),
        "sync": (atomic_file, "_sync_folder"),
        "rename": (Path, "rename"),
    }
    before = sorted(folder.path.iterdir())
    monkeypatch.setattr(*targets[step], fail)
    with pytest.raises(CheckpointError, match="No space left on device"):
        folder.write(Position(2, 0), content(3))
    monkeypatch.undo()
    assert sorted(folder.path.iterdir()) == before


def test_the_hash_is_that_of_the_state(folder):
    def hashed(position):
        return store.state_hash(store.read_manifest(folder.at(position)))

    same = content(1)
    folder.write(
        Position(3, 0), store.Checkpoint(same.arrays, same.state, {"versions": {"keras": "other"}})
    )
    assert hashed(Position(3, 0)) == hashed(FIRST)
    assert hashed(SECOND) != hashed(FIRST)
