"""Data sets by name: what they are, and where their files are looked for."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import keras
import numpy as np
from convoy.data import cifar, idx
from convoy.data.digits import load_digits

Split = tuple[np.ndarray, np.ndarray]
Normalisation = Literal["scale", "standardise", "imagenet", "cifar10"]

CHANNELS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
"""Mean and deviation of the channels of a data set's images, from 0 to 1."""


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set before it is read.

    Attributes:
        name: as in `--dataset`.
        train: images to train on.
        test: images held out.
        shape: of an image: height, width, channels.
        classes: how many.
        normalisation: `"scale"` divides by 255; `"standardise"` takes each image's mean and
            deviation; `"imagenet"` and `"cifar10"` those of the channels of that data set.
        crop_padding: pixels around an image from which random crops are taken.
        flip: whether a mirrored image means the same.
    """

    name: str
    train: int
    test: int
    shape: tuple[int, int, int]
    classes: int
    normalisation: Normalisation
    crop_padding: int = 0
    flip: bool = False

    def size(self, split: str) -> int:
        return self.train if split == "train" else self.test


DATASETS = {
    info.name: info
    for info in (
        DatasetInfo("mnist", 60_000, 10_000, (28, 28, 1), 10, "scale"),
        DatasetInfo("fashion_mnist", 60_000, 10_000, (28, 28, 1), 10, "scale"),
        DatasetInfo("cifar10", 50_000, 10_000, (32, 32, 3), 10, "standardise", 4, True),
        DatasetInfo("cifar100", 50_000, 10_000, (32, 32, 3), 100, "standardise", 4, True),
        DatasetInfo("imagenet", 1_281_167, 50_000, (224, 224, 3), 1000, "imagenet", flip=True),
        DatasetInfo("digits", 1_408, 389, (8, 8, 1), 10, "scale"),
    )
}


@dataclass(frozen=True)
class Dataset:
    """Images as bytes, in memory, with their labels."""

    info: DatasetInfo
    train: Split
    test: Split


def load(name: str, folder: str | Path = ".") -> Dataset:
    """Return a data set: from files in a folder, else as Keras downloads it.

    Args:
        name: one of `DATASETS`.
        folder: where its files are, in any of the usual formats: an `.npz` file of Keras, idx
            files with or without gzip, CIFAR's Python or binary batches. Folders of the usual
            names inside of it are looked into too.

    Raises:
        ValueError: if there is no such data set, it is nowhere to be found, or a file is damaged.
    """
    if name not in DATASETS:
        raise ValueError(f"{name!r} is not a data set. Pass one of {', '.join(DATASETS)}.")
    info = DATASETS[name]
    if name == "digits":
        return Dataset(info, *(_as_bytes(split) for split in load_digits()))
    if name == "imagenet":
        raise ValueError(
            "imagenet does not fit into memory. Read its files with "
            "convoy.data.image_files.find_images()."
        )
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(
            f"--dataset-path {folder}: there is no such folder. Make it, or leave the flag out, to "
            "have the data downloaded."
        )
    splits = _find(info, root) or _download(info, root)
    train, test = (_checked(info, split, part) for part, split in zip(PARTS, splits, strict=True))
    return Dataset(info, train, test)


PARTS = ("train", "test")
_IDX_FOLDERS = {
    "mnist": (".", "mnist", "MNIST", "MNIST/raw"),
    "fashion_mnist": (".", "fashion_mnist", "fashion-mnist", "FashionMNIST", "FashionMNIST/raw"),
}
_CIFAR_FOLDERS = {
    "cifar10": (".", "cifar-10-batches-py", "cifar-10-batches-bin"),
    "cifar100": (".", "cifar-100-python", "cifar-100-binary"),
}


def _find(info: DatasetInfo, root: Path) -> tuple[Split, Split] | None:
    for archive in (root / f"{info.name}.npz", root / f"{info.name.replace('_', '-')}.npz"):
        if archive.is_file():
            return _read_npz(archive)
    read: Callable[[Path, str], tuple[Split, Split] | None]
    if info.name in _IDX_FOLDERS:
        folders, read = _IDX_FOLDERS[info.name], idx.read_folder
    else:
        folders, read = _CIFAR_FOLDERS[info.name], cifar.read_folder
    found: Iterator[tuple[Split, Split] | None] = (read(root / part, info.name) for part in folders)
    return next((splits for splits in found if splits is not None), None)


def _read_npz(path: Path) -> tuple[Split, Split]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            x_train, y_train, x_test, y_test = (
                stored[name] for name in ("x_train", "y_train", "x_test", "y_test")
            )
    except KeyError as error:
        raise ValueError(
            f"{path} has no array {error}. It must have x_train, y_train, x_test and y_test."
        ) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return (x_train, y_train), (x_test, y_test)


def _download(info: DatasetInfo, root: Path) -> tuple[Split, Split]:
    try:
        return getattr(keras.datasets, info.name).load_data()
    except Exception as error:
        wanted = (
            f"{info.name}.npz, or train-images-idx3-ubyte and its three sisters (.gz or not)"
            if info.name in _IDX_FOLDERS
            else f"{' or '.join(_CIFAR_FOLDERS[info.name][1:])}, or {info.name}.npz"
        )
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{info.name} is not in {root.resolve()}, and downloading it failed ({reason}). Put "
            f"{wanted} there, pass --dataset-path, or try --synthetic-data cpu."
        ) from None


def _checked(info: DatasetInfo, split: Split, part: str) -> Split:
    """Bring a split to bytes of the right shape; refuse what does not fit."""
    images, labels = np.asarray(split[0]), np.asarray(split[1]).reshape(-1)
    if images.ndim == 3:
        images = images[..., None]
    if images.shape[1:] != info.shape or images.dtype != np.uint8:
        raise ValueError(
            f"The {part} images of {info.name} are {images.dtype} of shape {images.shape[1:]}, not "
            f"bytes of shape {info.shape}."
        )
    if len(images) != len(labels):
        raise ValueError(f"{info.name} has {len(images)} {part} images, but {len(labels)} labels.")
    if len(labels) and not 0 <= labels.min() <= labels.max() < info.classes:
        raise ValueError(
            f"The {part} labels of {info.name} go from {labels.min()} to {labels.max()}, not from "
            f"0 to {info.classes - 1}."
        )
    return images, labels.astype(np.int32)


def _as_bytes(split: Split) -> Split:
    return np.rint(split[0] * 255).astype(np.uint8), split[1]
