"""The checksum of record files: CRC-32C, turned and shifted."""

from __future__ import annotations

from collections.abc import Callable

_CASTAGNOLI = 0x82F63B78


def _table() -> list[int]:
    entries = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (_CASTAGNOLI if entry & 1 else 0)
        entries.append(entry)
    return entries


_TABLE = _table()


def slow_crc32c(data: bytes) -> int:
    """Return CRC-32C of some bytes: good enough for short ones."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _find() -> Callable[[bytes], int]:
    try:
        from google_crc32c import value
    except ImportError:
        return slow_crc32c
    return value


_crc32c = _find()


def masked_checksum(data: bytes) -> int:
    """Return the checksum of some bytes as it stands in record files."""
    value = _crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
