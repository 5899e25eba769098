"""A user's own images: one folder for each class, or a CSV file with the class of each image."""

import csv
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from convoy.data.image_files import ENDINGS, SPLITS, Folder, class_names, find_folder
from convoy.error_messages import first_line
from convoy.units import format_count

FOLDER = "folder"
"""The name of such a dataset in `--dataset`."""
CSV = "labels.csv"
_FILE, _LABEL, _SPLIT = "file", "label", "split"


class ImageFolder(NamedTuple):
    """Training and test images of the same classes."""

    train: Folder
    test: Folder

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes


def find_image_folder(
    path: Path, validation_split: float, classes: Sequence[str] | None = None
) -> ImageFolder:
    """Return the images of a folder or of a CSV file.

    Args:
        path: a folder with a folder of images for each class; or with folders `train` and `val`
            of such folders; or with a file `labels.csv`; or the path of a CSV file. Its columns
            are `file`, `label` and, if wanted, `split` with `train` or `val`.
        validation_split: fraction of the images of each class that is held out for validation, if
            the images are not divided yet. It depends only on the names of the files.
        classes: names of the classes in the order of their labels; by default sorted by name.

    Raises:
        ValueError: if there are no images, fewer than two classes, or an image of another class.
    """
    table = path / CSV if path.is_dir() and (path / CSV).is_file() else path
    if table.is_file():
        found = _read_csv(table, classes)
    elif not path.is_dir():
        raise ValueError(
            f"--dataset-path {path}: there is no such folder or CSV file. Pass its path."
        )
    else:
        found = _find_folders(path, classes)
    if len(found.classes) < 2:
        raise ValueError(
            f"{path} has images of the class {', '.join(found.classes)} only. Put a folder with "
            "images for each of two or more classes there."
        )
    if isinstance(found, ImageFolder):
        return found
    return _divide(found, validation_split)


def _find_folders(root: Path, classes: Sequence[str] | None) -> ImageFolder | Folder:
    """Return the images in folders, divided if there are folders for both splits."""
    names = set(class_names(root))
    if not names & {*SPLITS["train"], *SPLITS["test"]}:
        return Folder.find(root, classes)
    train, test = find_folder(root, "train", classes), find_folder(root, "test", classes)
    if train is None:
        raise ValueError(f"{root} has a folder of test images, but no folder train. Add it.")
    return train if test is None else ImageFolder(train, test)


def _read_csv(table: Path, classes: Sequence[str] | None) -> ImageFolder | Folder:
    """Return the images of a CSV file, divided if it has a column for that."""
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns, rows = reader.fieldnames or [], list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{table} cannot be read as a CSV file: {first_line(error).rstrip('.')}. Pass another "
            "file."
        ) from None
    if not {_FILE, _LABEL} <= set(columns):
        raise ValueError(
            f"{table} has the columns {', '.join(columns) or 'none'}. Its first line must name the "
            f"columns {_FILE} and {_LABEL}, and may name {_SPLIT}."
        )
    known = tuple(classes or sorted({row[_LABEL] for row in rows if row[_LABEL]}))
    splits: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    for number, row in enumerate(rows, start=2):
        name, split = _check_row(table, number, row, known)
        splits[split].append((name, known.index(row[_LABEL])))
    if not splits["train"]:
        raise ValueError(f"{table} has no images to train on. Set the split of some to train.")
    train, test = (
        Folder.of(table.parent, images, known) for images in (splits["train"], splits["test"])
    )
    return ImageFolder(train, test) if len(test) else train


def _check_row(
    table: Path, number: int, row: Mapping[str, str | None], classes: Sequence[str]
) -> tuple[str, str]:
    """Return file and split of a row."""
    name, label, split = row[_FILE] or "", row[_LABEL], row.get(_SPLIT) or "train"
    where = f"{table}, line {number}"
    if not name.lower().endswith(ENDINGS):
        raise ValueError(
            f"{where}: {name!r} is not an image file. It must end in one of {', '.join(ENDINGS)}."
        )
    if label not in classes:
        raise ValueError(
            f"{where}: the label {label!r} of {name!r} is not one of the classes. Correct "
            "it, or remove the line."
        )
    if not (table.parent / name).is_file():
        raise ValueError(
            f"{where}: there is no file {table.parent / name}. Add it, or remove the line."
        )
    found = next((part for part, names in SPLITS.items() if split.lower() in names), None)
    if found is None:
        raise ValueError(
            f"{where}: the split {split!r} is neither train nor val. Write one of these."
        )
    return name, found


def _divide(images: Folder, fraction: float) -> ImageFolder:
    """Hold out a fraction of the images of each class, at least one of each.

    The images are chosen by a checksum of their names, so that a resumed run and later validation
    hold out the same ones.
    """
    chosen = np.zeros(len(images), bool)
    for label, name in enumerate(images.classes):
        (places,) = np.nonzero(images.labels == label)
        if len(places) < 2:
            raise ValueError(
                f"The class {name!r} has {format_count(len(places), 'image')}. At least two are "
                "needed: one to train on and one to validate on. Add images, or remove the class."
            )
        count = min(max(1, math.floor(fraction * len(places))), len(places) - 1)
        order = sorted(places, key=lambda place: zlib.crc32(images.names[place].encode()))
        chosen[order[:count]] = True
    return ImageFolder(images.select(~chosen), images.select(chosen))
