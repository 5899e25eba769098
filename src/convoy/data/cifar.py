"""CIFAR-10 and CIFAR-100 as their makers publish them: Python batches, or binary ones."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

Split = tuple[np.ndarray, np.ndarray]

_PIXELS = 3 * 32 * 32

# All that a pickled dictionary of arrays, numbers and texts needs.
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}

_TRAIN = {
    "cifar10": [f"data_batch_{number}" for number in range(1, 6)],
    "cifar100": ["train"],
}
_TEST = {"cifar10": ["test_batch"], "cifar100": ["test"]}
# Bytes before the pixels of a binary record, and which of them is the label.
_HEADER = {"cifar10": (1, 0), "cifar100": (2, 1)}


class _DataOnly(pickle.Unpickler):
    """Reads arrays, and refuses to import or run anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not data")


def read_folder(folder: Path, name: str) -> tuple[Split, Split] | None:
    """Return the splits in a folder, or `None` if it has no batches.

    Raises:
        ValueError: if some are missing, or one is damaged.
    """
    for suffix, read in (("", read_python), (".bin", read_binary)):
        train, test = (
            [folder / f"{stem}{suffix}" for stem in stems[name]] for stems in (_TRAIN, _TEST)
        )
        present = [path.is_file() for path in (*train, *test)]
        if not any(present):
            continue
        if not all(present):
            missing = (*train, *test)[present.index(False)]
            raise ValueError(f"{folder} has batches of {name}, but {missing.name} is missing.")
        return _join([read(path, name) for path in train]), _join(
            [read(path, name) for path in test]
        )
    return None


def read_python(path: Path, name: str) -> Split:
    """Return images and labels of a Python batch. Nothing in it is run.

    Raises:
        ValueError: if it is not such a batch.
    """
    try:
        with path.open("rb") as file:
            batch = _DataOnly(file, encoding="bytes").load()
        labels = batch[b"labels" if name == "cifar10" else b"fine_labels"]
        pixels = np.asarray(batch[b"data"])
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{path} is not a Python batch of {name}: {error}") from None
    if pixels.ndim != 2 or pixels.shape[1] != _PIXELS or pixels.dtype != np.uint8:
        raise ValueError(
            f"{path} is damaged: its data are {pixels.dtype} of shape {pixels.shape}, not bytes of "
            f"shape (n, {_PIXELS})."
        )
    return _channels_last(pixels), np.asarray(labels)


def read_binary(path: Path, name: str) -> Split:
    """Return images and labels of a binary batch.

    Raises:
        ValueError: if it does not hold whole records.
    """
    header, label = _HEADER[name]
    content = np.fromfile(path, np.uint8)
    if not content.size or content.size % (header + _PIXELS):
        raise ValueError(
            f"{path} is damaged: {content.size} bytes are not whole records of {header + _PIXELS}."
        )
    records = content.reshape(-1, header + _PIXELS)
    return _channels_last(records[:, header:]), records[:, label]


def _channels_last(pixels: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _join(splits: list[Split]) -> Split:
    images, labels = zip(*splits, strict=True)
    return np.concatenate(images), np.concatenate(labels)
