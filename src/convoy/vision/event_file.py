"""Scalars in the files that TensorBoard reads.

An event file is a row of records: length, checksum of the length, data, checksum of the data. The
data are protocol buffers of the type `tensorflow.Event`, of which three fields are needed.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

_CASTAGNOLI = 0x82F63B78


def _table() -> list[int]:
    entries = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (_CASTAGNOLI if entry & 1 else 0)
        entries.append(entry)
    return entries


_TABLE = _table()


def masked_checksum(data: bytes) -> int:
    """Return CRC-32C of some bytes, turned and shifted as in record files."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """Return data as one record of a file."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        (
            length,
            struct.pack("<I", masked_checksum(length)),
            data,
            struct.pack("<I", masked_checksum(data)),
        )
    )


class EventFile:
    """A new file of scalars in a folder, open for writing."""

    def __init__(self, folder: Path) -> None:
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        self._file = _open_new(folder / name)
        self._write(_field(3, b"brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write some values of one step."""
        summary = b"".join(
            _field(1, _field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
            for tag, value in values.items()
        )
        self._write(b"\x10" + _varint(step) + _field(5, summary))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: bytes) -> None:
        self._file.write(frame(b"\x09" + struct.pack("<d", time.time()) + event))
        self._file.flush()


def _open_new(path: Path) -> BinaryIO:
    """Open a file that is not there; number it if another run began in the same second."""
    number = 0
    while True:
        try:
            return path.with_name(path.name + (f".{number}" if number else "")).open("xb")
        except FileExistsError:
            number += 1


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content
