"""Record files (TFRecord): length, checksum of the length, data, checksum of the data."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from convoy.data.checksum import masked_checksum

_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")
OVERHEAD = _HEAD.size + _TAIL.size


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
    content = os.pread(descriptor, length + _TAIL.size, begin)
    data, tail = content[:length], content[length:]
    if len(tail) < _TAIL.size or masked_checksum(data) != _TAIL.unpack(tail)[0]:
        raise DamagedDataError("its data do not have their checksum")
    return data


def read_all(path: Path) -> Iterator[bytes]:
    """Return the data of all records of a file.

    Raises:
        DamagedDataError: if one is not what was written.
    """
    places = scan(path)
    with path.open("rb", buffering=0) as file:
        for number, (begin, length) in enumerate(places):
            try:
                yield read(file.fileno(), int(begin), int(length))
            except DamagedDataError as error:
                raise DamagedDataError(f"{path}, record {number}: {error}") from None
