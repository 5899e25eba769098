"""Files that are written completely or not at all."""

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
def atomic_write(path: Path) -> Iterator[Path]:
    """Write a file through a temporary one, which replaces it at the end if nothing fails.

    The file keeps its old content until then. If several processes write it, the last one wins.

    Example:
        >>> with atomic_write(path) as unfinished:
        ...     unfinished.write_text(text)
    """
    # In a hidden folder: the temporary file keeps its name, and no search by pattern finds it.
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=path.parent) as folder:
        unfinished = Path(folder) / path.name
        yield unfinished
        unfinished.replace(path)
