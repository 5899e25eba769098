"""Record files that are built from folders hold the same images, with their annotations."""

import numpy as np
import pytest
from convoy.data import examples, records
from convoy.data.image_files import Folder, Shards, find_images

from .pictures import CLASSES, write_folders
from .shards import build, everything

WANTED = ("image/class/label", "image/class/synset", "image/height", "image/filename")


@pytest.mark.parametrize(("split", "count"), [("train", 12), ("test", 6)])
def test_shards_hold_what_folders_hold(folders, shards, split, count):
    of_folders, of_shards = find_images(folders, split), find_images(shards, split)
    assert isinstance(of_folders, Folder)
    assert isinstance(of_shards, Shards)
    assert len(of_shards) == count
    assert everything(of_folders) == everything(of_shards)


def test_shards_are_named_and_mixed_and_have_the_usual_fields(shards):
    names = sorted(path.name for path in shards.iterdir() if not path.name.startswith("."))
    assert names == [
        *(f"train-0000{number}-of-00003" for number in range(3)),
        *(f"validation-0000{number}-of-00002" for number in range(2)),
    ]
    data = list(records.read_all(shards / names[0]))
    labels = [examples.decode(record, WANTED)["image/class/label"][0] for record in data]
    assert set(labels) <= {1, 2, 3}
    assert len(set(labels)) > 1
    first = examples.decode(data[0], WANTED)
    assert first["image/class/synset"] == [CLASSES[labels[0] - 1].encode()]
    assert first["image/height"][0] in (60, 68, 76, 84)


def test_notes_go_into_records(folders, tmp_path):
    (tmp_path / "synsets").write_text("\n".join(reversed(CLASSES)))
    (tmp_path / "texts").write_text("n01\tred things\n")
    (tmp_path / "boxes").write_text("n01_0.JPEG,0.1,0.2,0.5,0.75\n")
    more = [
        f"--{name}={tmp_path / file}"
        for name, file in (("synsets", "synsets"), ("metadata", "texts"), ("boxes", "boxes"))
    ]
    assert build(folders, tmp_path / "out", *more) == 0
    files = find_images(tmp_path / "out", "train")
    samples = [files.read(index) for index in range(len(files))]
    with_objects = [sample for sample in samples if sample.objects]
    assert len(with_objects) == 1
    assert with_objects[0].label == 2  # the last in the list
    np.testing.assert_allclose(with_objects[0].objects, [(0.2, 0.1, 0.75, 0.5)])


def test_a_build_that_was_interrupted_goes_on(shards, folders, tmp_path):
    wanted = (shards / "train-00001-of-00003").read_bytes()
    (tmp_path / ".unfinished-train-00001-of-00003").write_bytes(b"half")
    (tmp_path / "train-00000-of-00003").write_bytes(b"there")
    assert build(folders, tmp_path) == 0
    assert (tmp_path / "train-00000-of-00003").read_bytes() == b"there"
    assert (tmp_path / "train-00001-of-00003").read_bytes() == wanted


def test_damaged_images_are_left_out_or_stop_a_build(tmp_path, capsys):
    source = write_folders(tmp_path / "in")
    bad = source / "train" / "n02" / "n02_1.JPEG"
    bad.write_bytes(bad.read_bytes()[:200])
    assert build(source, tmp_path / "a", "--damaged-images", "stop") == 2
    error = capsys.readouterr().err
    assert "n02_1.JPEG: it is a JPEG" in error
    assert "Pass --damaged-images skip to leave it out." in error
    assert build(source, tmp_path / "b") == 0
    said = capsys.readouterr()
    assert "skipped" in said.err
    assert "n02_1.JPEG: it is a JPEG" in said.err
    assert "1 damaged image skipped" in said.out
    assert len(find_images(tmp_path / "b", "train")) == 11
