"""Numbers of images and classes in a dataset, for `convoy data verify`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from convoy.data import jpeg
from convoy.data.catalog import DatasetInfo, load
from convoy.data.image_files import ImageFiles, find_images
from convoy.data.records import DamagedDataError


class SplitCount(NamedTuple):
    """The images that were found of a split."""

    part: str
    images: int
    classes: int
    damaged: list[str]


def count_images(info: DatasetInfo, folder: Path) -> Iterator[SplitCount]:
    """Count the images and classes of each split.

    In image files, all checksums and the ends of the images are verified.

    Raises:
        ValueError: if the dataset cannot be read.
    """
    if info.name == "imagenet":
        for part in ("train", "test"):
            yield _count_files(part, find_images(folder, part))
        return
    data = load(info.name, folder)
    for part, (images, labels) in (("train", data.train), ("test", data.test)):
        yield SplitCount(part, len(images), len(np.unique(labels)), [])


def _count_files(part: str, files: ImageFiles) -> SplitCount:
    labels: set[int] = set()
    damaged = list(files.damaged)
    images = 0
    for index in range(len(files)):
        try:
            sample = files.read(index)
            jpeg.check(sample.data)
        except DamagedDataError as error:
            damaged.append(f"{files.name(index)}: {error}")
            continue
        labels.add(sample.label)
        images += 1
    return SplitCount(part, images, len(labels), damaged)
