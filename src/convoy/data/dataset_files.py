"""Readers for the files in which datasets are published: npz archives, idx files, CIFAR batches."""

import gzip
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from convoy.error_messages import first_line

Split = tuple[np.ndarray, np.ndarray]
"""Images and labels."""
Splits = tuple[Split, Split]
"""Training and test data."""

_IDX_BYTES = 0x08
_IDX_FILES = (
    ("train-images", "idx3"),
    ("train-labels", "idx1"),
    ("t10k-images", "idx3"),
    ("t10k-labels", "idx1"),
)

_CIFAR_PIXELS = 3 * 32 * 32
_CIFAR_FILES = {
    "cifar10": ([f"data_batch_{number}" for number in range(1, 6)], ["test_batch"]),
    "cifar100": (["train"], ["test"]),
}
# Bytes before the pixels of a binary record, and which of them is the label.
_CIFAR_HEADER = {"cifar10": (1, 0), "cifar100": (2, 1)}
# The only names that a pickled dictionary of arrays, numbers and texts needs.
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}


def read_npz(path: Path) -> Splits:
    """Return the splits in an archive of Keras.

    Raises:
        ValueError: if an array is missing or the file is damaged.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            x_train, y_train, x_test, y_test = (
                stored[name] for name in ("x_train", "y_train", "x_test", "y_test")
            )
    except KeyError as error:
        raise ValueError(
            f"{path} has no array {error}. It must have x_train, y_train, x_test and y_test. "
            "Download it again."
        ) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged: {_reason(error)}. Download it again.") from None
    return (x_train, y_train), (x_test, y_test)


def read_idx_folder(folder: Path, name: str) -> Splits | None:
    """Return the splits in a folder of idx files (MNIST's format); `None` if it has none.

    Raises:
        ValueError: if a file is missing or damaged.
    """
    files = [_find_idx(folder, *stem) for stem in _IDX_FILES]
    if not any(files):
        return None
    for (stem, kind), file in zip(_IDX_FILES, files, strict=True):
        if file is None:
            raise ValueError(
                f"{folder} has files of {name}, but {stem}-{kind}-ubyte is missing. Add it."
            )
    arrays = [read_idx(file) for file in files if file is not None]
    return (arrays[0], arrays[1]), (arrays[2], arrays[3])


def _find_idx(folder: Path, stem: str, kind: str) -> Path | None:
    names = [f"{stem}{mark}{kind}-ubyte{end}" for mark in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_idx(path: Path) -> np.ndarray:
    """Return the array of bytes in an idx file, compressed by gzip or not.

    Raises:
        ValueError: if the file has another format or is incomplete.
    """
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is damaged: {_reason(error)}. Download it again.") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _IDX_BYTES or not content[3]:
        raise ValueError(
            f"{path} is not an idx file of bytes: it begins with {content[:4]!r}. Download it "
            "again."
        )
    start = 4 + 4 * content[3]
    shape = tuple(int(length) for length in np.frombuffer(content[4:start], ">u4"))
    expected = int(np.prod(shape, dtype=np.int64))
    if len(content) - start != expected:
        raise ValueError(
            f"{path} is damaged: its header announces {expected} bytes of data, but it has "
            f"{len(content) - start}. Download it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_cifar_folder(folder: Path, name: str) -> Splits | None:
    """Return the splits in a folder of CIFAR's Python or binary batches; `None` if it has none.

    Raises:
        ValueError: if a batch is missing or damaged.
    """
    for suffix, read in (("", read_cifar_python), (".bin", read_cifar_binary)):
        train, test = ([folder / f"{stem}{suffix}" for stem in part] for part in _CIFAR_FILES[name])
        missing = [path.name for path in (*train, *test) if not path.is_file()]
        if len(missing) == len(train) + len(test):
            continue
        if missing:
            raise ValueError(
                f"{folder} has batches of {name}, but {missing[0]} is missing. Add it."
            )
        return _join([read(path, name) for path in train]), _join(
            [read(path, name) for path in test]
        )
    return None


class _DataUnpickler(pickle.Unpickler):
    """Reads arrays, and refuses to import or run anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not data")


def read_cifar_python(path: Path, name: str) -> Split:
    """Return images and labels of a Python batch. No code in it is run.

    Raises:
        ValueError: if it is not such a batch.
    """
    try:
        with path.open("rb") as file:
            batch = _DataUnpickler(file, encoding="bytes").load()
        labels = batch[b"labels" if name == "cifar10" else b"fine_labels"]
        pixels = np.asarray(batch[b"data"])
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"{path} is not a Python batch of {name}: {_reason(error)}. Download it again."
        ) from None
    if pixels.ndim != 2 or pixels.shape[1] != _CIFAR_PIXELS or pixels.dtype != np.uint8:
        raise ValueError(
            f"{path} is damaged: its data are {pixels.dtype} of shape {pixels.shape}, not bytes of "
            f"shape (n, {_CIFAR_PIXELS}). Download it again."
        )
    return _channels_last(pixels), np.asarray(labels)


def read_cifar_binary(path: Path, name: str) -> Split:
    """Return images and labels of a binary batch.

    Raises:
        ValueError: if its size is not that of complete records.
    """
    header, label = _CIFAR_HEADER[name]
    size = header + _CIFAR_PIXELS
    content = np.fromfile(path, np.uint8)
    if not content.size or content.size % size:
        raise ValueError(
            f"{path} is damaged: {content.size} bytes are not a number of records of {size} bytes. "
            "Download it again."
        )
    records = content.reshape(-1, size)
    return _channels_last(records[:, header:]), records[:, label]


def _reason(error: BaseException) -> str:
    return first_line(error).rstrip(".")


def _channels_last(pixels: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _join(splits: list[Split]) -> Split:
    images, labels = zip(*splits, strict=True)
    return np.concatenate(images), np.concatenate(labels)
