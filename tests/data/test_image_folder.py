import numpy as np
import pytest
from convoy.data.image_folder import find_image_folder

pytest.importorskip("cv2")


@pytest.fixture
def write(tmp_path):
    """Write images of one colour, and return the folder."""
    import cv2

    def write(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), np.full((6, 8, 3), 40, np.uint8))
        return tmp_path

    return write


def names(*classes, count=10):
    return [f"{name}/{number}.png" for name in classes for number in range(count)]


def test_a_folder_for_each_class_is_divided(write):
    found = find_image_folder(write(*names("cat", "dog")), 0.2)
    assert found.classes == ("cat", "dog")
    assert (len(found.train), len(found.test)) == (16, 4)
    assert np.bincount(found.test.labels).tolist() == [2, 2]
    assert sorted((*found.train.names, *found.test.names)) == sorted(names("cat", "dog"))


def test_the_same_images_are_held_out_every_time(write):
    root = write(*names("cat", "dog"))
    few, many = find_image_folder(root, 0.2), find_image_folder(root, 0.5)
    assert few.test.names == find_image_folder(root, 0.2).test.names
    assert set(few.test.names) < set(many.test.names)


def test_at_least_one_image_of_a_class_is_held_out_and_one_is_not(write):
    for fraction in (0.01, 0.99):
        found = find_image_folder(write(*names("cat", "dog", count=2)), fraction)
        assert (len(found.train), len(found.test)) == (2, 2)


@pytest.mark.parametrize("folder", ["val", "validation", "test"])
def test_folders_for_the_splits(write, folder):
    found = find_image_folder(write("train/b/1.png", "train/a/2.png", f"{folder}/b/3.png"), 0.2)
    assert found.classes == ("a", "b")
    assert found.train.names == ("a/2.png", "b/1.png")
    assert (found.test.names, found.test.labels.tolist()) == (("b/3.png",), [1])


def test_training_images_alone_are_divided(write):
    found = find_image_folder(write(*(f"train/{name}" for name in names("a", "b"))), 0.3)
    assert (len(found.train), len(found.test)) == (14, 6)


def test_hidden_folders_are_no_classes(write):
    assert find_image_folder(write(*names("a", "b"), ".cache/1.png"), 0.2).classes == ("a", "b")


def test_the_order_of_classes_can_be_given(write):
    found = find_image_folder(write(*names("a", "b")), 0.2, ["b", "a"])
    assert found.classes == ("b", "a")
    assert [name[0] for name in found.train.names] == ["ba"[label] for label in found.train.labels]


def test_a_csv_file_names_the_classes(write):
    root = write("1.png", "sub/2.png", "3.png", "4.png")
    (root / "labels.csv").write_text("file,label\n1.png,x\nsub/2.png,y\n3.png,x\n4.png,y\n")
    found = find_image_folder(root, 0.5)
    assert (found.classes, len(found.train), len(found.test)) == (("x", "y"), 2, 2)
    assert found.train.read(0).data[:4] == b"\x89PNG"


def test_a_csv_file_may_divide_the_images(write):
    root = write("1.png", "2.png", "3.png")
    table = root / "mine.csv"
    table.write_text("label,file,split\nx,1.png,train\ny,2.png,train\ny,3.png,val\n")
    found = find_image_folder(table, 0.5)
    assert (found.train.names, found.test.names) == (("1.png", "2.png"), ("3.png",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\n1.png,x\n", "has the columns name, label. Its first line must name"),
        ("file,label\n1.png,\n", r"line 2: the label '' of '1.png' is not one of the classes"),
        ("file,label\n1.png,x\n9.png,y\n", "line 3: there is no file .*9.png"),
        ("file,label\n1.txt,x\n", "'1.txt' is not an image file. It must end in one of .jpeg"),
        ("file,label,split\n1.png,x,dev\n", "the split 'dev' is neither train nor val"),
        ("file,label,split\n1.png,x,val\n", "has no images to train on"),
        ("file,label\n1.png,x\n", "images of the class x only"),
    ],
)
def test_a_wrong_csv_file_is_refused(write, text, message):
    root = write("1.png")
    (root / "labels.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        find_image_folder(root, 0.2)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a/1.png", "a/2.png"], "images of the class a only"),
        (["a/1.png", "a/2.png", "b/1.png"], "The class 'b' has 1 image. At least two"),
        (["val/a/1.png", "val/b/1.png"], "but no folder train"),
        (["1.png"], "has no folders with images in them"),
    ],
)
def test_a_wrong_folder_is_refused(write, files, message):
    with pytest.raises(ValueError, match=message):
        find_image_folder(write(*files), 0.2)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere: there is no such folder or CSV file"):
        find_image_folder(tmp_path / "nowhere", 0.2)
