"""Record files (TFRecord): writing, indexing and reading them.

    record    8 bytes   length of the data
              4 bytes   checksum of the length
              n bytes   data
              4 bytes   checksum of the data

Checksums are CRC-32C, masked. A file may be compressed by gzip as a whole; it can then only be read
from its beginning.
"""

import functools
import gzip
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from convoy.atomic_file import atomic_write
from google_crc32c import value as crc32c

_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")
_GZIP = b"\x1f\x8b"


class DamagedDataError(ValueError):
    """An image or a record that is not what was written."""


def masked_checksum(data: bytes) -> int:
    """Return the checksum of some bytes as record files have it: CRC-32C, rotated and shifted."""
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """Return data as one record of a file."""
    length = struct.pack("<Q", len(data))
    head = _HEAD.pack(len(data), masked_checksum(length))
    return b"".join((head, data, _TAIL.pack(masked_checksum(data))))


def scan(path: Path) -> tuple[np.ndarray, str]:
    """Return the place of each record in a file: begin and length of its data.

    Only lengths are read, not data.

    Returns:
        The places, and the problem at which they end if a length is damaged or the file ends inside
        a record; empty if there is none.
    """
    places: list[tuple[int, int]] = []
    size, offset, problem = path.stat().st_size, 0, ""
    with path.open("rb", buffering=0) as file:
        try:
            while offset < size:
                begin = offset + _HEAD.size
                length = _length(os.pread(file.fileno(), _HEAD.size, offset))
                offset = begin + length + _TAIL.size
                if offset > size:
                    raise DamagedDataError("the file ends within its data")
                places.append((begin, length))
        except DamagedDataError as error:
            problem = f"{path}, record {len(places)}: {error}"
    return np.array(places, np.int64).reshape(-1, 2), problem


def _length(head: bytes) -> int:
    """Return the length of the data of the record that begins with these bytes."""
    if len(head) < _HEAD.size:
        raise DamagedDataError("the file ends within its length")
    length, checksum = _HEAD.unpack(head)
    if masked_checksum(head[:8]) != checksum:
        raise DamagedDataError("its length is damaged, so the records after it cannot be read")
    return length


def read(descriptor: int, begin: int, length: int) -> bytes:
    """Return the data of one record.

    Args:
        descriptor: descriptor of the open file.
        begin: offset of the data.
        length: length of the data.

    Raises:
        DamagedDataError: if the checksum does not match.
    """
    return _checked(os.pread(descriptor, length + _TAIL.size, begin), length)


def _checked(content: bytes, length: int) -> bytes:
    """Return the data of a record from its content: data and checksum."""
    data, tail = content[:length], content[length:]
    if len(tail) < _TAIL.size:
        raise DamagedDataError("the file ends within its data")
    if masked_checksum(data) != _TAIL.unpack(tail)[0]:
        raise DamagedDataError("its data do not match their checksum")
    return data


def read_all(path: Path) -> Iterator[bytes]:
    """Yield the data of all records of a file, compressed or not.

    Raises:
        DamagedDataError: if a record is damaged.
    """
    open_compressed, compression_error = _decompression()
    number = 0
    try:
        with open_compressed(path) if is_compressed(path) else path.open("rb") as file:
            while head := file.read(_HEAD.size):
                length = _length(head)
                yield _checked(file.read(length + _TAIL.size), length)
                number += 1
    except (DamagedDataError, EOFError, compression_error, gzip.BadGzipFile) as error:
        raise DamagedDataError(f"{path}, record {number}: {error}") from None


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed by gzip."""
    with path.open("rb", buffering=0) as file:
        head = file.read(_HEAD.size)
    # A record of 35,615 bytes begins with the same two bytes, but has a matching checksum.
    is_record = len(head) == _HEAD.size and masked_checksum(head[:8]) == _HEAD.unpack(head)[1]
    return head.startswith(_GZIP) and not is_record


@functools.cache
def _decompression() -> tuple[Callable[[Path], Any], Any]:
    """Return the function that opens a compressed file, and the error for a damaged one."""
    try:  # twice as fast as the standard library
        from isal import igzip, isal_zlib
    except ImportError:
        return gzip.open, zlib.error
    return igzip.open, isal_zlib.error


def write_file(path: Path, data: Iterable[bytes], *, compressed: bool = False) -> None:
    """Write a file of records atomically."""
    with (
        atomic_write(path) as unfinished,
        gzip.open(unfinished, "wb", 6) if compressed else unfinished.open("wb") as file,
    ):
        for record in data:
            file.write(frame(record))
