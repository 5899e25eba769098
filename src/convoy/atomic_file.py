"""Files and folders that are written completely or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

UNFINISHED = ".unfinished-"
"""Prefix of temporary folders; a killed process may leave one."""


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
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=path.parent) as hidden:
        unfinished = Path(hidden) / path.name
        yield unfinished
        unfinished.replace(path)


@contextlib.contextmanager
def unfinished_folder(parent: Path) -> Iterator[Path]:
    """Create a temporary folder, to be filled and then renamed with `rename_synced`.

    A folder that is not renamed in the block is removed.
    """
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=parent) as hidden:
        unfinished = Path(hidden) / "folder"
        unfinished.mkdir()
        yield unfinished


def rename_synced(unfinished: Path, path: Path) -> None:
    """Rename a folder, and sync its entries and its new name to the disk.

    After a power failure, the folder is either complete or absent.
    """
    _sync_folder(unfinished)
    unfinished.rename(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
