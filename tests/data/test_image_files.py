"""Finding images, in folders and in shards, and making the latter of the former."""

import numpy as np
import pytest
from convoy.data import examples, records
from convoy.data.image_files import Folder, Shards, find_images
from convoy.data.records import DamagedDataError
from convoy_command import cli

from .pictures import CLASSES, encode, make_image, write_folders

WANTED = ("image/class/label", "image/class/synset", "image/height", "image/filename")


def build(source, output, *more):
    words = ["--source", source, "--output", output, "--train-shards", 3, "--validation-shards", 2]
    return cli.main(["data", "build-imagenet", *map(str, [*words, *more])])


@pytest.fixture(scope="module")
def shards(folders, tmp_path_factory):
    output = tmp_path_factory.mktemp("shards")
    assert build(folders, output) == 0
    return output


def everything(files):
    samples = [files.read(index) for index in range(len(files))]
    return sorted((sample.label, sample.data) for sample in samples)


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
    assert "n02_1.JPEG: it is a JPEG" in capsys.readouterr().err
    assert build(source, tmp_path / "b") == 0
    said = capsys.readouterr()
    assert "skipped" in said.err
    assert "n02_1.JPEG: it is a JPEG" in said.err
    assert "1 damaged images were skipped" in said.out
    assert len(find_images(tmp_path / "b", "train")) == 11


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
    begin, length = records.scan(file)[1]
    whole[begin + length // 2] ^= 1
    file.write_bytes(whole[:-1])
    files = find_images(tmp_path, "train")
    assert len(files.damaged) == 1
    assert "train-00001-of-00003, record 3: the file ends in its data" in files.damaged[0]
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
