"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file, and sync it to the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a place to write a file to, which is moved to its own at the end, if nothing fails.

    The file has its old content until then. Others may write it at the same time; it is the last
    one's.

    Example:
        >>> with written_whole(path) as unfinished:
        ...     unfinished.write_text(text)
    """
    # In a folder, so that it has its name, and nobody who looks for names beside it finds it.
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=path.parent) as folder:
        unfinished = Path(folder) / path.name
        yield unfinished
        unfinished.replace(path)
