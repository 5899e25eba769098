"""What protocol buffers look like on disk: as much of it as record files need."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LENGTHS = {_FIXED64: 8, _FIXED32: 4}


def varint(value: int) -> bytes:
    """Return a number from 0 on, seven bits a byte."""
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, content: bytes) -> bytes:
    """Return a field that holds bytes, a text or a message."""
    return varint(number << 3 | _BYTES) + varint(len(content)) + content


def fields(data: bytes | memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Return number and content of each field of a message.

    Raises:
        ValueError: if it is no message.
    """
    view, place = memoryview(data), 0
    while place < len(view):
        key, place = _read_varint(view, place)
        kind = key & 7
        if kind == _VARINT:
            number, place = _read_varint(view, place)
            yield key >> 3, number
            continue
        if kind == _BYTES:
            length, place = _read_varint(view, place)
        elif kind in _LENGTHS:
            length = _LENGTHS[kind]
        else:
            raise ValueError(f"there is no field of kind {kind}")
        if place + length > len(view):
            raise ValueError("a field is cut short")
        yield key >> 3, view[place : place + length]
        place += length


def varints(view: memoryview) -> Iterator[int]:
    """Return numbers that stand one after the other."""
    place = 0
    while place < len(view):
        value, place = _read_varint(view, place)
        yield value


def _read_varint(view: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(view):
        byte = view[place]
        value |= (byte & 0x7F) << shift
        place += 1
        shift += 7
        if byte < 0x80:
            return value, place
    raise ValueError("a number is cut short")
