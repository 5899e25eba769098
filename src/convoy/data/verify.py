"""Comparison of a dataset's images and classes with the expected numbers: `convoy data verify`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from convoy.configuration import Configuration, Option
from convoy.data import jpeg
from convoy.data.catalog import DATASETS, PARTS, load
from convoy.data.image_files import ImageFiles, find_images
from convoy.data.image_folder import FOLDER, find_image_folder
from convoy.data.records import DamagedDataError
from convoy.units import format_table


@dataclass(frozen=True)
class VerifyOptions(Configuration, all_flags=True):
    """The options of `convoy data verify`.

    Attributes:
        dataset: name of the dataset
        dataset_path: folder of the dataset (default: .)
    """

    dataset: Annotated[str, Option(choices=(*DATASETS, FOLDER))]
    dataset_path: Path = Path(".")


def verify(options: VerifyOptions) -> bool:
    """Print the numbers of images and classes of each split; return whether all are complete.

    In image files, all checksums and the ends of the images are verified.

    Raises:
        ValueError: if the dataset cannot be read.
    """
    if options.dataset == FOLDER:
        return _verify_folder(options.dataset_path)
    info, folder = DATASETS[options.dataset], options.dataset_path
    in_memory = None if info.name == "imagenet" else load(info.name, folder)
    complete = True
    for part in PARTS:
        if in_memory is None:
            labels, damaged = _read_labels(find_images(folder, part))
        else:
            labels, damaged = getattr(in_memory, part)[1], []
        images, expected, classes = len(labels), info.size(part), len(np.unique(labels))
        complete &= (images, classes, damaged) == (expected, info.classes, [])
        print(
            f"{part:<6} {images:>7} images of {expected}, {classes} classes of {info.classes}"
            + (f", {len(damaged)} damaged" if damaged else "")
        )
    print(f"{options.dataset} is {'complete' if complete else 'not complete'}")
    return complete


def _verify_folder(path: Path) -> bool:
    """Print the number of images of each class of a user's own images."""
    found = find_image_folder(path, 0.5)
    counts, problems = np.zeros(len(found.classes), int), list[str]()
    for files in found:
        labels, damaged = _read_labels(files)
        counts += np.bincount(np.array(labels, int), minlength=len(counts))
        problems += damaged
    rows = [(name, f"{count:>7} images") for name, count in zip(found.classes, counts, strict=True)]
    print("\n".join(format_table(rows)))
    print(f"{counts.sum()} images of {len(counts)} classes, {len(problems)} damaged")
    return not problems


def _read_labels(files: ImageFiles) -> tuple[list[int], list[str]]:
    """Return the labels of the images that can be read; print and return the damaged ones."""
    labels, damaged = list[int](), list(files.damaged)
    for index in range(len(files)):
        try:
            sample = files.read(index)
            jpeg.check(sample.data)
        except DamagedDataError as error:
            damaged.append(f"{files.name(index)}: {error}")
        else:
            labels.append(sample.label)
    for name in damaged:
        print(f"damaged: {name}", file=sys.stderr)
    return labels, damaged
