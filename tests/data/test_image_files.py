"""Finding images in folders and in shards, and naming those that are damaged."""

import pytest
from convoy.data import examples, records
from convoy.data.image_files import find_images
from convoy.data.records import DamagedDataError
from convoy_command import cli

from .pictures import encode, make_image, write_folders
from .shards import everything


def test_where_records_are_is_noted_and_looked_up_again(shards, tmp_path):
    for path in shards.glob("train-*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    first = find_images(tmp_path, "train")
    (index,) = tmp_path.glob(".convoy-train-index.npz")
    assert everything(find_images(tmp_path, "train")) == everything(first)
    # A file that has changed is not what was noted.
    changed = tmp_path / "train-00000-of-00003"
    changed.write_bytes(changed.read_bytes() + records.frame(examples.encode({"a": [1]})))
    assert len(find_images(tmp_path, "train")) == 13
    index.write_bytes(b"damaged")
    assert len(find_images(tmp_path, "train")) == 13


def test_labels_mean_the_same_if_a_class_has_no_held_out_image(tmp_path):
    for split, names in (("train", ("a", "b", "c")), ("val", ("c",))):
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "x.png").write_bytes(encode(make_image(0), ".png"))
    assert find_images(tmp_path, "test").read(0).label == 2
    (tmp_path / "val" / "d").mkdir()
    with pytest.raises(ValueError, match=r"val/d is not a class of the training images"):
        find_images(tmp_path, "test")


def test_what_is_missing_is_named(shards, tmp_path):
    with pytest.raises(ValueError, match="there is no such folder"):
        find_images(tmp_path / "nowhere", "train")
    with pytest.raises(ValueError, match=r"has no images of the train split\. Put record files"):
        find_images(tmp_path, "train")
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match="has no folders with images in them"):
        find_images(tmp_path, "train")
    (tmp_path / "train-00001-of-00003").write_bytes(b"")
    with pytest.raises(ValueError, match=r"has 1 of 3 shards .* missing one is number 0"):
        find_images(tmp_path, "train")


def test_damaged_records_are_known_by_name(shards, tmp_path):
    for path in shards.glob("train-*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    file = tmp_path / "train-00001-of-00003"
    whole = bytearray(file.read_bytes())
    places, _ = records.scan(file)
    begin, length = places[1]
    whole[begin + length // 2] ^= 1
    file.write_bytes(whole[:-1])
    files = find_images(tmp_path, "train")
    assert len(files.damaged) == 1
    assert "train-00001-of-00003, record 3: the file ends within its data" in files.damaged[0]
    assert len(files) == 11
    damaged = [index for index in range(11) if "00001-of-00003, record 1" in files.name(index)]
    with pytest.raises(DamagedDataError, match="its data do not match their checksum"):
        files.read(damaged[0])


# convoy data verify ---------------------------------------------------------------------------


def test_verify_counts_and_names_what_is_damaged(tmp_path, capsys):
    source = write_folders(tmp_path)
    (source / "val" / "n01" / "n01_0.JPEG").write_bytes(b"no image")
    words = ["data", "verify", "--dataset", "imagenet", "--dataset-path", str(source)]
    assert cli.main(words) == 1
    said = capsys.readouterr()
    assert "train       12 images of 1281167, 3 classes of 1000\n" in said.out
    assert "test         5 images of 50000, 3 classes of 1000, 1 damaged\n" in said.out
    assert "damaged: " in said.err
    assert "n01_0.JPEG: it cannot be decoded" in said.err
