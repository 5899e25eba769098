import pytest
from convoy.atomic_file import atomic_write, rename_synced, unfinished_folder


def test_a_file_keeps_its_content_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with atomic_write(path) as unfinished:
        unfinished.write_text("new")
        assert path.read_text() == "old"
        assert unfinished.name == path.name
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_unfinished_is_not_found_by_its_ending(tmp_path):
    with atomic_write(tmp_path / "file.txt") as unfinished:
        unfinished.write_text("ne")
        assert not list(tmp_path.glob("*.txt"))
        unfinished.write_text("new")


def test_what_failed_leaves_nothing(tmp_path):
    def write():
        with atomic_write(tmp_path / "file.txt") as unfinished:
            unfinished.write_text("ne")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write()
    assert not list(tmp_path.iterdir())


def test_several_write_to_places_of_their_own(tmp_path):
    path = tmp_path / "file.txt"
    with atomic_write(path) as ours, atomic_write(path) as someone_elses:
        ours.write_text("ours")
        someone_elses.write_text("someone else's")
    assert path.read_text() == "ours"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_when_it_is_renamed(tmp_path):
    path = tmp_path / "made" / "folder"
    with unfinished_folder(path.parent) as unfinished:
        (unfinished / "file.txt").write_text("new")
        assert not path.exists()
        rename_synced(unfinished, path)
    assert (path / "file.txt").read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_is_not_renamed_leaves_nothing(tmp_path):
    with unfinished_folder(tmp_path) as unfinished:
        (unfinished / "file.txt").write_text("ne")
    assert not list(tmp_path.iterdir())
