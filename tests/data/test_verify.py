"""Numbers of images and classes of a dataset, and the images that are damaged."""

from dataclasses import replace

import pytest
from convoy.data import catalog, verify
from convoy.data.verify import VerifyOptions

from .pictures import write_folders


def verified(folder, capsys, name="imagenet"):
    """Return the verdict, and what was printed to both streams."""
    complete = verify.verify(VerifyOptions(name, folder))
    shown = capsys.readouterr()
    return complete, shown.out.splitlines(), shown.err.splitlines()


@pytest.fixture
def expects(monkeypatch):
    """Expect other numbers of images and classes of ImageNet."""

    def change(**numbers):
        changed = replace(catalog.DATASETS["imagenet"], **numbers)
        monkeypatch.setitem(catalog.DATASETS, "imagenet", changed)

    return change


def test_a_complete_dataset(folders, expects, capsys):
    expects(train=12, test=6, classes=3)
    complete, out, err = verified(folders, capsys)
    assert (complete, err) == (True, [])
    assert [line.split() for line in out[:2]] == [
        ["train", "12", "images", "of", "12,", "3", "classes", "of", "3"],
        ["test", "6", "images", "of", "6,", "3", "classes", "of", "3"],
    ]
    assert out[2:] == ["imagenet is complete"]


def test_missing_images_are_counted(folders, expects, capsys):
    expects(train=13, test=6, classes=3)
    complete, out, _ = verified(folders, capsys)
    assert not complete
    assert "12 images of 13" in out[0]
    assert out[-1] == "imagenet is not complete"


def test_damaged_images_are_named_and_not_counted(tmp_path, expects, capsys):
    folder = write_folders(tmp_path)
    expects(train=12, test=6, classes=3)
    damaged = folder / "train" / "n01" / "n01_0.JPEG"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    complete, out, err = verified(folder, capsys)
    assert not complete
    assert len(err) == 1
    assert damaged.name in err[0]
    assert out[0].endswith(", 1 damaged")


def test_a_dataset_in_memory_is_compared_too(tmp_path, capsys):
    complete, out, _ = verified(tmp_path, capsys, "digits")
    assert complete
    assert out[-1] == "digits is complete"
