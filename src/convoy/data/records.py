"""Record files (TFRecord): length, checksum of the length, data, checksum of the data.

A file may be compressed by gzip as a whole. It can then only be read from its beginning.
"""

from __future__ import annotations

import functools
import gzip
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from convoy.atomic_file import written_whole
from convoy.data.checksum import masked_checksum

_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")
OVERHEAD = _HEAD.size + _TAIL.size
_GZIP = b"\x1f\x8b"


class DamagedDataError(ValueError):
    """An image or a record is not what was written."""


class CutShortError(DamagedDataError):
    """The rest of a file cannot be read.

    Attributes:
        found: where the records before that are.
    """

    def __init__(self, message: str, found: np.ndarray) -> None:
        super().__init__(message)
        self.found = found

    def __reduce__(self) -> tuple[type[CutShortError], tuple[str, np.ndarray]]:
        return type(self), (str(self), self.found)


def frame(data: bytes) -> bytes:
    """Return data as one record of a file."""
    length = struct.pack("<Q", len(data))
    head = _HEAD.pack(len(data), masked_checksum(length))
    return b"".join((head, data, _TAIL.pack(masked_checksum(data))))


def scan(path: Path) -> np.ndarray:
    """Return where the records of a file are: begin and length of the data of each.

    Only lengths are read, not data.

    Raises:
        CutShortError: if a length is damaged, or the file ends inside of a record.
    """
    places: list[tuple[int, int]] = []
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        offset = 0
        while offset < size:
            head = os.pread(file.fileno(), _HEAD.size, offset)
            begin = offset + _HEAD.size
            problem = _problem(head, begin, size)
            if problem:
                message = f"{path}, record {len(places)}: {problem}"
                raise CutShortError(message, _as_array(places))
            length = _HEAD.unpack(head)[0]
            places.append((begin, length))
            offset = begin + length + _TAIL.size
    return _as_array(places)


def _problem(head: bytes, begin: int, size: int) -> str:
    if len(head) < _HEAD.size:
        return "the file ends in its length"
    length, checksum = _HEAD.unpack(head)
    if masked_checksum(head[:8]) != checksum:
        return "its length is damaged, and all records after it are lost"
    return "the file ends in its data" if begin + length + _TAIL.size > size else ""


def _as_array(places: list[tuple[int, int]]) -> np.ndarray:
    return np.array(places, np.int64).reshape(-1, 2)


def read(descriptor: int, begin: int, length: int) -> bytes:
    """Return the data of one record.

    Args:
        descriptor: of the open file.
        begin: where its data begin.
        length: of its data.

    Raises:
        DamagedDataError: if they are not what was written.
    """
    return _checked(os.pread(descriptor, length + _TAIL.size, begin), length)


def _checked(content: bytes, length: int) -> bytes:
    """Return the data in the content of a record, which their checksum follows."""
    data, tail = content[:length], content[length:]
    if len(tail) < _TAIL.size or masked_checksum(data) != _TAIL.unpack(tail)[0]:
        raise DamagedDataError("its data do not have their checksum")
    return data


def read_all(path: Path) -> Iterator[bytes]:
    """Return the data of all records of a file, compressed or not.

    Raises:
        DamagedDataError: if one is not what was written.
    """
    if is_compressed(path):
        yield from _read_compressed(path)
        return
    places = scan(path)
    with path.open("rb", buffering=0) as file:
        for number, (begin, length) in enumerate(places):
            try:
                yield read(file.fileno(), int(begin), int(length))
            except DamagedDataError as error:
                raise DamagedDataError(f"{path}, record {number}: {error}") from None


def is_compressed(path: Path) -> bool:
    """Say whether a file is compressed by gzip."""
    with path.open("rb", buffering=0) as file:
        head = file.read(_HEAD.size)
    # A record of 35,615 bytes begins with the same two, and has the checksum of its length.
    is_record = len(head) == _HEAD.size and masked_checksum(head[:8]) == _HEAD.unpack(head)[1]
    return head.startswith(_GZIP) and not is_record


@functools.cache
def _decompression() -> tuple[Callable[[Path], Any], Any]:
    """Return what opens a compressed file, and the error of one that is damaged."""
    try:  # in half of the time that the standard library takes
        from isal import igzip, isal_zlib
    except ImportError:
        return gzip.open, zlib.error
    return igzip.open, isal_zlib.error


def _read_compressed(path: Path) -> Iterator[bytes]:
    open_compressed, compression_error = _decompression()
    number = 0
    try:
        with open_compressed(path) as file:
            while head := file.read(_HEAD.size):
                length = _HEAD.unpack(head)[0] if len(head) == _HEAD.size else 0
                # The size is not known; a length that is damaged is found by its checksum.
                if problem := _problem(head, 0, length + _TAIL.size):
                    raise DamagedDataError(problem)
                content = file.read(length + _TAIL.size)
                if len(content) < length + _TAIL.size:
                    raise DamagedDataError("the file ends in its data")
                yield _checked(content, length)
                number += 1
    except (DamagedDataError, EOFError, compression_error, gzip.BadGzipFile) as error:
        raise DamagedDataError(f"{path}, record {number}: {error}") from None


def write_file(path: Path, data: Iterable[bytes], *, compressed: bool = False) -> None:
    """Write a file of records; it is there whole or not at all."""
    with (
        written_whole(path) as unfinished,
        gzip.open(unfinished, "wb", 6) if compressed else unfinished.open("wb") as file,
    ):
        for record in data:
            file.write(frame(record))
