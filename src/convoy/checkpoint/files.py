"""Reading of the files of a checkpoint, with damage distinguished from temporary errors.

A missing file, or a folder or pipe in its place, shows that the checkpoint is damaged. Anything
else, such as an error of the disk, missing permission or too many open files, shows nothing about
the checkpoint: it may be readable in a minute.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from convoy.checkpoint.errors import CheckpointError, DamagedError
from convoy.error_messages import system_reason

_PROOFS = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


@contextmanager
def open_file(path: Path) -> Iterator[BufferedReader]:
    """Open a file for reading, without waiting for a writer if it is a pipe.

    Raises:
        DamagedError: if there is no such file, or it is no regular file.
        OSError: if it cannot be opened or read now.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DamagedError(f"{path} is damaged: it is not a regular file.")
            yield file
    except _PROOFS as error:
        raise DamagedError(f"{path} cannot be read: {system_reason(error)}.") from error


def read_file(path: Path, limit: int) -> bytes:
    """Return the content of a file.

    Raises:
        DamagedError: as `open_file`, and if it has more bytes than the limit.
        OSError: as `open_file`.
    """
    with open_file(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DamagedError(f"{path} is damaged: it has more than {limit} bytes.")
    return data


@contextmanager
def errors_that_may_pass(path: Path) -> Iterator[None]:
    """Turn system errors in the block, which do not prove damage, into a `CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {system_reason(error)}. This does not show that it is "
            "damaged, so it is left as it is. Try again, or move it away."
        ) from error


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
