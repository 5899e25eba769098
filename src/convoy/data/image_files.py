"""Access to single compressed images and their labels, in folders by class or in record files."""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from convoy.atomic_file import atomic_write
from convoy.data import examples, records
from convoy.data.jpeg import Area
from convoy.data.records import DamagedDataError
from convoy.error_messages import system_reason

ENDINGS = (".jpeg", ".jpg", ".png", ".webp", ".bmp")
SPLITS = {"train": ("train",), "test": ("val", "validation", "test")}
_SHARD = re.compile(r"(?P<split>[a-z]+)-(?P<number>\d+)-of-(?P<total>\d+)")
_BOX = tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
_ENCODED, _LABEL = "image/encoded", "image/class/label"
_WANTED = frozenset((_ENCODED, _LABEL, *_BOX))


class Sample(NamedTuple):
    """A compressed image.

    Attributes:
        data: its bytes.
        label: its class, counted from 0.
        objects: bounding boxes of the objects in it, if known.
    """

    data: bytes
    label: int
    objects: tuple[Area, ...] = ()


class ImageFiles(Protocol):
    """Images that can be read in any order, in any process."""

    @property
    def damaged(self) -> tuple[str, ...]:
        """Names of files that cannot be read to their end."""
        ...

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Return a name by which a person can find the image."""
        ...

    def read(self, index: int) -> Sample:
        """Return an image.

        Raises:
            DamagedDataError: if it is damaged.
        """
        ...


@dataclass(frozen=True)
class Folder:
    """Images in one folder for each class; classes are numbered in the order of their names."""

    root: Path
    names: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]
    damaged: tuple[str, ...] = ()

    @classmethod
    def find(cls, root: Path, classes: Sequence[str] | None = None) -> Folder:
        """Return the images in a folder of folders.

        Args:
            root: the folder.
            classes: names of all classes; by default those of the folders.

        Raises:
            ValueError: if there are no images, or if there is a folder of another class.
        """
        found = class_names(root)
        unknown = set(found) - set(classes or found)
        if unknown:
            raise ValueError(
                f"{root / min(unknown)} is not a class of the training images. Rename or remove it."
            )
        classes = tuple(classes or found)
        images = [
            (f"{name}/{file}", label)
            for label, name in enumerate(classes)
            if name in found
            for file in sorted(os.listdir(root / name))
            if file.lower().endswith(ENDINGS)
        ]
        if not images:
            raise ValueError(
                f"{root} has no folders with images in them. Put a folder of images for each class "
                "there."
            )
        return cls.of(root, images, classes)

    @classmethod
    def of(cls, root: Path, images: Sequence[tuple[str, int]], classes: Sequence[str]) -> Folder:
        """Return the given images: their paths in a folder, and their labels."""
        names = tuple(name for name, _ in images)
        return cls(root, names, np.array([label for _, label in images], np.int32), tuple(classes))

    def select(self, chosen: np.ndarray) -> Folder:
        """Return the images whose places in an array of booleans are true."""
        names = tuple(self.names[place] for place in np.flatnonzero(chosen))
        return replace(self, names=names, labels=self.labels[chosen])

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return str(self.root / self.names[index])

    def read(self, index: int) -> Sample:
        try:
            data = (self.root / self.names[index]).read_bytes()
        except OSError as error:
            raise DamagedDataError(f"it cannot be read: {system_reason(error)}") from None
        return Sample(data, int(self.labels[index]))


@dataclass(frozen=True)
class Shards:
    """Images in record files; `places` has the file, begin and length of each record."""

    files: tuple[Path, ...]
    places: np.ndarray
    damaged: tuple[str, ...] = ()
    _open: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def find(cls, root: Path, split: str) -> Shards | None:
        """Return the shards of a split in a folder, or `None`.

        Raises:
            ValueError: if some of them are missing.
        """
        found = sorted(
            (int(match["number"]), int(match["total"]), root / match.string)
            for match in map(_SHARD.fullmatch, os.listdir(root))
            if match and match["split"] in SPLITS[split]
        )
        if not found:
            return None
        total = found[0][1]
        missing = sorted(set(range(total)) - {number for number, _, _ in found})
        if missing or len(found) != total:
            raise ValueError(
                f"{root} has {len(found)} of {total} shards for {split}; the first missing one is "
                f"number {missing[0] if missing else total}. Add the missing ones."
            )
        files = tuple(path for _, _, path in found)
        index = root / f".convoy-{split}-index.npz"
        shards = cls._read_index(index, files)
        if shards is None:
            shards = cls.scan(files)
            shards._write_index(index)
        return shards

    @classmethod
    def scan(cls, files: tuple[Path, ...]) -> Shards:
        places, damaged = [], []
        for number, file in enumerate(files):
            found, problem = records.scan(file)
            if problem:
                damaged.append(problem)
            places.append(np.column_stack([np.full(len(found), number), found]))
        return cls(files, np.concatenate(places), tuple(damaged))

    def _write_index(self, path: Path) -> None:
        """Save the places of records for the next run, if none is damaged and that is possible."""
        if self.damaged:
            return
        with (
            contextlib.suppress(OSError),
            atomic_write(path) as unfinished,
            unfinished.open("xb") as file,
        ):
            np.savez(file, files=_stamps(self.files), places=self.places)

    @classmethod
    def _read_index(cls, path: Path, files: tuple[Path, ...]) -> Shards | None:
        """Return the shards from a saved index, if no file has changed since."""
        try:
            with np.load(path, allow_pickle=False) as saved:
                if np.array_equal(saved["files"], _stamps(files)):
                    return cls(files, saved["places"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            pass  # no index, or a damaged one
        return None

    def __len__(self) -> int:
        return len(self.places)

    def name(self, index: int) -> str:
        file = int(self.places[index, 0])
        first = int(np.searchsorted(self.places[:, 0], file))
        return f"{self.files[file]}, record {index - first}"

    def read(self, index: int) -> Sample:
        file, begin, length = (int(value) for value in self.places[index])
        data = records.read(self._descriptor(file), begin, length)
        found = examples.decode(data, _WANTED)
        if not found.get(_ENCODED) or not found.get(_LABEL):
            raise DamagedDataError(f"it has no {_LABEL if found.get(_ENCODED) else _ENCODED}")
        boxes = zip(*(found.get(side, ()) for side in _BOX), strict=False)
        # Labels in record files are counted from 1: 0 stands for none of the classes.
        return Sample(found[_ENCODED][0], found[_LABEL][0] - 1, tuple(boxes))

    def _descriptor(self, file: int) -> int:
        if file not in self._open:
            self._open[file] = os.open(self.files[file], os.O_RDONLY | os.O_CLOEXEC)
        return self._open[file]

    def __getstate__(self) -> dict[str, object]:
        # Descriptors are not valid in another process.
        return {**vars(self), "_open": {}}


def _stamps(files: Sequence[Path]) -> np.ndarray:
    """Return sizes and times of modification, which change when a file does."""
    found = [file.stat() for file in files]
    return np.array([(int(stat.st_size), stat.st_mtime_ns) for stat in found], np.int64)


def class_names(root: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted; hidden ones are left out."""
    entries = (entry for entry in os.scandir(root) if not entry.name.startswith("."))
    return sorted(entry.name for entry in entries if entry.is_dir())


def find_folder(root: Path, split: str, classes: Sequence[str] | None = None) -> Folder | None:
    """Return the images of a split in folders by class; `None` if there is no folder for the split.

    By default classes are those of the training images, so that labels mean the same in both
    splits.
    """
    found = {s: [root / n for n in SPLITS[s] if (root / n).is_dir()] for s in SPLITS}
    if not found[split]:
        return None
    if classes is None and found["train"]:
        classes = class_names(found["train"][0])
    return Folder.find(found[split][0], classes)


def find_images(root: Path, split: str) -> ImageFiles:
    """Return the images of a split: from shards in a folder, else from its subfolders.

    Args:
        root: folder of shards such as `train-00000-of-01024`, or of folders `train` and `val`.
        split: `"train"` or `"test"`.

    Raises:
        ValueError: if there are no images, or if shards are missing.
    """
    if not root.is_dir():
        raise ValueError(f"--dataset-path {root}: there is no such folder. Pass its path.")
    shards = Shards.find(root, split)
    if shards is not None:
        return shards
    folder = find_folder(root, split)
    if folder is not None:
        return folder
    wanted = SPLITS[split][0]
    shard = "train-00000-of-01024" if split == "train" else "validation-00000-of-00128"
    raise ValueError(
        f"{root.resolve()} has no images of the {split} split. Put record files such as {shard} "
        f"there, or a folder {wanted} with a folder of images for each class. `convoy data "
        "build-imagenet` makes record files from folders."
    )
