"""Datasets by name: their description, and loading them into memory."""

import json
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Literal

import keras
import numpy as np
from convoy.data import dataset_files
from convoy.data.dataset_files import Split, Splits
from convoy.error_messages import first_line

Normalisation = Literal["scale", "standardise", "imagenet", "cifar10"]

CHANNELS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
"""Mean and standard deviation of each channel of a dataset's images, with pixels from 0 to 1."""

_FILES = resources.files(__package__)
CLASS_NAMES: dict[str, list[str]] = json.loads(_FILES.joinpath("class_names.json").read_text())
"""Names of the classes of a dataset, in the order of the labels."""

# Mean and standard deviation of synthetic pixels, from 0 to 255.
SYNTHETIC_MEAN, SYNTHETIC_DEVIATION = 127.0, 60.0
# Leaves 1,408 images for training: complete batches of 64 over any usual number of replicas.
HELD_OUT_DIGITS = 389


@dataclass(frozen=True)
class DatasetInfo:
    """The description of a dataset.

    Attributes:
        name: name of the dataset, as in `--dataset`.
        train: number of training images.
        test: number of test images.
        shape: height, width and channels of an image.
        classes: number of classes.
        normalisation: `"scale"` divides by 255; `"standardise"` uses mean and deviation of each
            image; `"imagenet"` and `"cifar10"` use those of the channels of that dataset.
        crop_padding: padding for random crops, in pixels.
        flip: whether an image flipped from left to right belongs to the same class.
        class_names: names of the classes, in the order of the labels; empty if they are unknown.
    """

    name: str
    train: int
    test: int
    shape: tuple[int, int, int]
    classes: int
    normalisation: Normalisation
    crop_padding: int = 0
    flip: bool = False
    class_names: tuple[str, ...] = ()

    def size(self, split: str) -> int:
        """Return the number of images of a split, `"train"` or `"test"`."""
        return self.train if split == "train" else self.test


DATASETS = {
    info.name: replace(info, class_names=tuple(CLASS_NAMES.get(info.name, ())))
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
    """Return a dataset, from files in a folder if it has them, else downloaded by Keras.

    Args:
        name: one of `DATASETS`.
        folder: folder of its files, in any of the usual formats: an `.npz` file of Keras, idx files
            with or without gzip, CIFAR's Python or binary batches. Subfolders with the usual names
            are searched too.

    Raises:
        ValueError: if there is no such dataset, it is not found, or a file is damaged.
    """
    if name not in DATASETS:
        raise ValueError(f"{name!r} is not a dataset. Pass one of {', '.join(DATASETS)}.")
    info = DATASETS[name]
    if name == "digits":
        return Dataset(info, *(_as_bytes(split) for split in load_digits()))
    if name == "imagenet":
        raise ValueError(
            "imagenet does not fit into memory. Use convoy.data.image_files.find_images()."
        )
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(
            f"--dataset-path {folder}: there is no such folder. Create it, or leave the flag out "
            "to download the data."
        )
    splits = _find(info, root) or _download(info, root)
    train, test = (_checked(info, split, part) for part, split in zip(PARTS, splits, strict=True))
    return Dataset(info, train, test)


PARTS = ("train", "test")
_MNIST = dataset_files.read_idx_folder
_CIFAR = dataset_files.read_cifar_folder
# The reader of a dataset's files, and the subfolders in which they may be.
_READERS = {
    "mnist": (_MNIST, (".", "mnist", "MNIST", "MNIST/raw")),
    "fashion_mnist": (
        _MNIST,
        (".", "fashion_mnist", "fashion-mnist", "FashionMNIST", "FashionMNIST/raw"),
    ),
    "cifar10": (_CIFAR, (".", "cifar-10-batches-py", "cifar-10-batches-bin")),
    "cifar100": (_CIFAR, (".", "cifar-100-python", "cifar-100-binary")),
}


def _find(info: DatasetInfo, root: Path) -> Splits | None:
    for archive in (root / f"{info.name}.npz", root / f"{info.name.replace('_', '-')}.npz"):
        if archive.is_file():
            return dataset_files.read_npz(archive)
    read, folders = _READERS[info.name]
    found = (read(root / part, info.name) for part in folders)
    return next((splits for splits in found if splits is not None), None)


def _download(info: DatasetInfo, root: Path) -> Splits:
    try:
        return getattr(keras.datasets, info.name).load_data()
    except Exception as error:
        read, folders = _READERS[info.name]
        files = "train-images-idx3-ubyte and the other idx files (.gz or not)"
        if read is _CIFAR:
            files = " or ".join(folders[1:])
        reason = first_line(error)
        raise ValueError(
            f"{info.name} is not in {root.resolve()}, and downloading it failed ({reason}). Put "
            f"{info.name}.npz, or {files} there, or pass another folder as --dataset-path."
        ) from None


def _checked(info: DatasetInfo, split: Split, part: str) -> Split:
    """Return a split as bytes of the right shape; reject one that does not fit."""
    images, labels = np.asarray(split[0]), np.asarray(split[1]).reshape(-1)
    if images.ndim == 3:
        images = images[..., None]
    if images.shape[1:] != info.shape or images.dtype != np.uint8:
        raise ValueError(
            f"The {part} images of {info.name} are {images.dtype} of shape {images.shape[1:]}, not "
            f"bytes of shape {info.shape}. Download the dataset again."
        )
    if len(images) != len(labels):
        raise ValueError(
            f"{info.name} has {len(images)} {part} images, but {len(labels)} labels. Download the "
            "dataset again."
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < info.classes:
        raise ValueError(
            f"The {part} labels of {info.name} go from {labels.min()} to {labels.max()}, not from "
            f"0 to {info.classes - 1}. Download the dataset again."
        )
    return images, labels.astype(np.int32)


def load_digits() -> Splits:
    """Return 1,797 images of handwritten digits, 8 x 8 pixels, with their labels.

    The images are the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and
    C. Kaynak (UCI Machine Learning Repository, https://doi.org/10.24432/C50P49), under the Creative
    Commons licence CC BY 4.0. They are part of the package.

    Returns:
        `(x_train, y_train), (x_test, y_test)`: images of shape `(n, 8, 8, 1)` with values from 0
        to 1 as float32, labels as int32.
    """
    with _FILES.joinpath("digits.npz").open("rb") as file:
        stored = np.load(file)
        images = stored["images"].astype("float32")[..., None] / 16
        labels = stored["labels"].astype("int32")
    places = np.arange(len(images))
    held_out = places * HELD_OUT_DIGITS % len(images) < HELD_OUT_DIGITS  # evenly spaced
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def _as_bytes(split: Split) -> Split:
    return np.rint(split[0] * 255).astype(np.uint8), split[1]


def synthetic_split(info: DatasetInfo, size: int, seed: int) -> Split:
    """Return a random image and label, repeated `size` times without using more memory."""
    rng = np.random.default_rng(seed)
    noise = np.clip(rng.standard_normal(info.shape), -2, 2)
    image = np.rint(SYNTHETIC_MEAN + SYNTHETIC_DEVIATION * noise).clip(0, 255).astype(np.uint8)
    label = np.int32(rng.integers(info.classes))
    return np.broadcast_to(image, (size, *info.shape)), np.broadcast_to(label, (size,))
