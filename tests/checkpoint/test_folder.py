"""The checkpoints of one run: the newest intact one is found, and others are kept out."""

import shutil

import pytest
from convoy.atomic_file import UNFINISHED
from convoy.checkpoint import CheckpointError, store
from convoy.checkpoint.folder import Folder, Position

from .conftest import FIRST, SECOND, content


def assert_falls_back_to_nothing(folder):
    with (
        pytest.warns(UserWarning, match="has been renamed"),
        pytest.raises(CheckpointError, match=r"All 2 checkpoints"),
    ):
        folder.newest()


def test_damage_to_all_of_them_is_an_error_that_says_so(folder):
    for position in (FIRST, SECOND):
        (folder.at(position) / store.ARRAYS).write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="The checkpoint before it is used"),
        pytest.raises(CheckpointError, match=r"All 2 checkpoints .* are damaged"),
    ):
        folder.newest()


def test_damaged_ones_are_set_aside_not_deleted(folder):
    (folder.at(SECOND) / store.MODEL).unlink()
    folder.set_aside_after(FIRST)
    assert folder.positions() == [FIRST]
    assert (folder.path / f"damaged-{SECOND.name}" / store.ARRAYS).exists()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be used for checkpoints: Not a directory"):
        Folder(tmp_path / "file" / "run").open_for_writing()


def test_two_runs_cannot_write_to_one_folder(folder):
    with pytest.raises(CheckpointError, match="Another run writes"):
        Folder(folder.path).open_for_writing()
    folder.close()
    second = Folder(folder.path)
    second.open_for_writing()
    second.close()


def test_what_a_killed_run_left_is_cleared_and_never_seen(folder):
    folder.close()
    half = folder.path / f"{UNFINISHED}{Position(2, 0).name}-1"
    shutil.copytree(folder.at(SECOND), half)
    (half / store.MANIFEST).unlink()
    assert folder.positions() == [FIRST, SECOND]
    folder.open_for_writing()
    assert not half.exists()


def test_only_those_that_are_kept_stay(folder):
    folder.write(Position(2, 0), content(3))
    folder.keep_only([FIRST, Position(2, 0)])
    assert folder.positions() == [FIRST, Position(2, 0)]


def test_checkpoints_that_were_swapped_are_found(folder):
    aside = folder.path / "aside"
    folder.at(FIRST).rename(aside)
    folder.at(SECOND).rename(folder.at(FIRST))
    aside.rename(folder.at(SECOND))
    assert_falls_back_to_nothing(folder)


def test_a_position_is_the_name_of_a_folder():
    assert Position.parse(FIRST.name) == FIRST
    assert Position.parse("epoch-0001") is None
    assert Position(3, 0) > Position(2, 7)
