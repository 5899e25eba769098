"""Record files of ImageNet from folders of images: `convoy data build-imagenet`."""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from convoy.atomic_file import atomic_write
from convoy.configuration import Configuration, Whole
from convoy.data import examples, jpeg
from convoy.data.image_files import SPLITS, Folder, find_folder
from convoy.data.jpeg import Area
from convoy.data.records import DamagedDataError, frame
from convoy.error_messages import system_reason
from convoy.units import format_count

NAMES = {"train": "train", "test": "validation"}


@dataclass(frozen=True)
class BuildOptions(Configuration, all_flags=True):
    """The options of `convoy data build-imagenet`.

    images:
        source: folder of image folders
        output: folder for the shards
        train_shards: number of training shards
        validation_shards: number of validation shards
        seed: seed of the order of the images
        damaged_images: skip damaged images with a message, or stop

    annotations:
        synsets: class names in the order of their labels
        metadata: lines of class name, tab, description
        boxes: CSV of file, xmin, ymin, xmax, ymax, from 0 to 1
    """

    source: Path
    output: Path
    train_shards: Whole = 1024
    validation_shards: Whole = 128
    seed: Whole = 0
    damaged_images: Literal["skip", "stop"] = "skip"
    synsets: Path | None = None
    metadata: Path | None = None
    boxes: Path | None = None


def build_imagenet(options: BuildOptions) -> None:
    """Build record files from ImageNet's images.

    The source has a folder `train`, and a folder `val` or `validation`, each with one folder for
    each class. Shards are written atomically, and existing ones are not built again.

    Raises:
        ValueError: if images or annotations cannot be read, or do not fill the shards.
    """
    shards = {"train": options.train_shards, "test": options.validation_shards}
    if not options.source.is_dir():
        raise ValueError(f"--source {options.source}: there is no such folder. Pass its path.")
    folders = {split: find_folder(options.source, split) for split in SPLITS}
    found = {split: folder for split, folder in folders.items() if folder is not None}
    if not found:
        raise ValueError(
            f"--source {options.source} has neither a folder train nor a folder val. Pass their "
            "parent."
        )
    for split, folder in found.items():
        if not 1 <= shards[split] <= len(folder):
            raise ValueError(
                f"{len(folder)} images of {split} do not fill {shards[split]} shards. Pass 1 to "
                f"{len(folder)} shards."
            )
    annotations = Annotations.read(options.synsets, options.metadata, options.boxes)
    for folder in found.values():
        annotations.check(folder)
    options.output.mkdir(parents=True, exist_ok=True)
    skipped = 0
    for split, folder in found.items():
        order = np.random.default_rng(options.seed).permutation(len(folder))
        for number, indices in enumerate(np.array_split(order, shards[split])):
            name = f"{NAMES[split]}-{number:05}-of-{shards[split]:05}"
            skipped += _write_shard(options, name, folder, indices, annotations)
        print(f"{split:<6} {len(folder):>9} images in {shards[split]} shards", flush=True)
    if skipped:
        print(f"{format_count(skipped, 'damaged image')} skipped")


@dataclass(frozen=True)
class Annotations:
    """Labels, descriptions of classes and bounding boxes of the images.

    Attributes:
        labels: label of each class, counted from 1; `None` numbers folders by name.
        texts: descriptions of the classes.
        boxes: bounding boxes of the objects in an image, by file name.
    """

    labels: Mapping[str, int] | None
    texts: Mapping[str, str]
    boxes: Mapping[str, list[Area]]

    @classmethod
    def read(cls, synsets: Path | None, metadata: Path | None, boxes: Path | None) -> Annotations:
        """Read the files that are given.

        Raises:
            ValueError: if a file cannot be read or has another format.
        """
        labels = None
        if synsets is not None:
            names = _text(synsets).split()
            labels = {name: label for label, name in enumerate(names, start=1)}
        texts = {}
        for line in _text(metadata).splitlines() if metadata else ():
            name, tab, text = line.partition("\t")
            if not tab:
                raise ValueError(
                    f"{metadata}: {line!r} is not a class, a tab and a description. Correct the "
                    "line."
                )
            texts[name] = text
        places: dict[str, list[Area]] = defaultdict(list)
        for row in csv.reader(_text(boxes).splitlines()) if boxes else ():
            try:
                left, top, right, bottom = (float(value) for value in row[1:])
            except ValueError:
                raise ValueError(
                    f"{boxes}: {','.join(row)!r} is not a file and four numbers. Correct the line."
                ) from None
            places[Path(row[0]).stem].append((top, left, bottom, right))
        return cls(labels, texts, places)

    def check(self, folder: Folder) -> None:
        unknown = set(folder.classes) - set(self.labels or folder.classes)
        if unknown:
            raise ValueError(
                f"{folder.root / min(unknown)} is not among the classes of --synsets. Add it there."
            )

    def label(self, folder: Folder, index: int) -> int:
        label = int(folder.labels[index])
        return label + 1 if self.labels is None else self.labels[folder.classes[label]]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {system_reason(error)}. Pass another file."
        ) from None


def _write_shard(
    options: BuildOptions,
    name: str,
    folder: Folder,
    indices: np.ndarray,
    annotations: Annotations,
) -> int:
    """Write a shard unless it exists; return the number of images that were skipped."""
    path = options.output / name
    if path.exists():
        return 0
    skipped = 0
    with atomic_write(path) as unfinished, unfinished.open("wb") as file:
        for index in indices:
            try:
                record = make_record(folder, int(index), annotations)
            except DamagedDataError as error:
                message = f"{folder.name(int(index))}: {error}"
                if options.damaged_images == "stop":
                    raise ValueError(
                        f"{message}. Pass --damaged-images skip to leave it out."
                    ) from None
                print(f"convoy data build-imagenet: skipped {message}", file=sys.stderr)
                skipped += 1
                continue
            file.write(frame(record))
    return skipped


def make_record(folder: Folder, index: int, annotations: Annotations) -> bytes:
    """Return an image and its annotations as a serialised `tf.train.Example`.

    Raises:
        DamagedDataError: if the image is not complete.
    """
    data = jpeg.as_plain_jpeg(folder.read(index).data)
    height, width = jpeg.size_of(data)
    name = folder.names[index]
    synset, _, file = name.partition("/")
    boxes = annotations.boxes.get(Path(file).stem, [])
    sides = {"ymin": 0, "xmin": 1, "ymax": 2, "xmax": 3}
    label = annotations.label(folder, index)
    return examples.encode(
        {
            "image/encoded": [data],
            "image/height": [height],
            "image/width": [width],
            "image/colorspace": [b"RGB"],
            "image/channels": [3],
            "image/format": [b"JPEG"],
            "image/filename": [file.encode()],
            "image/class/label": [label],
            "image/class/synset": [synset.encode()],
            "image/class/text": [annotations.texts.get(synset, "").encode()],
            **{f"image/object/bbox/{key}": [b[side] for b in boxes] for key, side in sides.items()},
            "image/object/bbox/label": [label] * len(boxes),
        }
    )
