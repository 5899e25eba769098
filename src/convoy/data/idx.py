"""The idx files of MNIST and its relatives."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

Split = tuple[np.ndarray, np.ndarray]

_BYTES = 0x08
_STEMS = (
    ("train-images", "idx3"),
    ("train-labels", "idx1"),
    ("t10k-images", "idx3"),
    ("t10k-labels", "idx1"),
)


def read_folder(folder: Path, name: str) -> tuple[Split, Split] | None:
    """Return the splits in a folder, or `None` if it has none of the files.

    Raises:
        ValueError: if some are missing, or one is damaged.
    """
    files = [_file(folder, *stem) for stem in _STEMS]
    if not any(files):
        return None
    for (stem, kind), file in zip(_STEMS, files, strict=True):
        if file is None:
            raise ValueError(f"{folder} has files of {name}, but {stem}-{kind}-ubyte is missing.")
    arrays = [read_idx(file) for file in files if file is not None]
    return (arrays[0], arrays[1]), (arrays[2], arrays[3])


def read_idx(path: Path) -> np.ndarray:
    """Return the array of bytes in an idx file, compressed by gzip or not.

    Raises:
        ValueError: if it is not such a file, or not whole.
    """
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _BYTES or not content[3]:
        raise ValueError(f"{path} is not an idx file of bytes: it begins with {content[:4]!r}.")
    start = 4 + 4 * content[3]
    shape = tuple(int(length) for length in np.frombuffer(content[4:start], ">u4"))
    expected = int(np.prod(shape, dtype=np.int64))
    if len(content) - start != expected:
        raise ValueError(
            f"{path} is damaged: {expected} bytes of data were announced, {len(content) - start} "
            "are there."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _file(folder: Path, stem: str, kind: str) -> Path | None:
    names = [f"{stem}{mark}{kind}-ubyte{end}" for mark in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)
