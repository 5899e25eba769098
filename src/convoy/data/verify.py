"""Verification that a dataset is complete: `convoy data verify`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from convoy.data import jpeg
from convoy.data.catalog import DATASETS, DatasetInfo, load
from convoy.data.image_files import ImageFiles, find_images
from convoy.data.records import DamagedDataError
from convoy_command.parser import Parser


class SplitCount(NamedTuple):
    """The images that were found of a split."""

    part: str
    images: int
    classes: int
    damaged: list[str]


def make_parser() -> Parser:
    parser = Parser(prog="convoy data verify", description=main.__doc__)
    parser.add_argument("--dataset", choices=tuple(DATASETS), required=True, help="its name")
    parser.add_argument("--dataset-path", default=".", help="its folder (default: .)")
    return parser


def main(words: Sequence[str]) -> int:
    """Read a dataset, and compare the numbers of images and classes with the expected ones.

    In image files, all checksums and the ends of the images are verified.
    """
    options = make_parser().parse_args(words)
    info = DATASETS[options.dataset]
    complete = True
    try:
        for found in _count(info, Path(options.dataset_path)):
            for name in found.damaged:
                print(f"damaged: {name}", file=sys.stderr)
            expected = info.size(found.part)
            complete &= found.images == expected and found.classes == info.classes
            complete &= not found.damaged
            print(
                f"{found.part:<6} {found.images:>7} images of {expected}, "
                f"{found.classes} classes of {info.classes}"
                + (f", {len(found.damaged)} damaged" if found.damaged else "")
            )
    except ValueError as error:
        print(f"convoy data: error: {error}", file=sys.stderr)
        return 2
    print(f"{options.dataset} is {'complete' if complete else 'not complete'}")
    return 0 if complete else 1


def _count(info: DatasetInfo, folder: Path) -> Iterator[SplitCount]:
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
