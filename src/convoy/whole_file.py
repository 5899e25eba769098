"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_whole(path: Path, *, by_several: bool = False) -> Iterator[Path]:
    """Give a place to write a file to, which takes its name at the end, and is gone if that fails.

    Args:
        path: of the file; it has its old content until then.
        by_several: whether other processes may write the same file at this time.

    Example:
        >>> with written_whole(path) as unfinished:
        ...     unfinished.write_text(text)
    """
    # The ending stays, for those who go by it.
    writer = f"-{os.getpid()}" if by_several else ""
    unfinished = path.with_name(f".unfinished{writer}-{path.name}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
