"""`tf.train.Example`: named lists of bytes, of floats or of integers, as protocol buffers."""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping, Sequence
from typing import Any

from convoy.data.protobuf import field, fields, varint, varints
from convoy.data.records import DamagedDataError

_BYTES, _FLOATS, _INTEGERS = 1, 2, 3


def encode(features: Mapping[str, Sequence[Any]]) -> bytes:
    """Return an example with lists of bytes, of floats or of integers, by name."""
    entries = (
        field(1, field(1, name.encode()) + field(2, _encode_list(values)))
        for name, values in features.items()
    )
    return field(1, b"".join(entries))


def _encode_list(values: Sequence[Any]) -> bytes:
    if not values:
        return b""  # of no kind: readers that want another one are not put off
    first = values[0]
    if isinstance(first, bytes):
        return field(_BYTES, b"".join(field(1, value) for value in values))
    if isinstance(first, float):
        return field(_FLOATS, field(1, struct.pack(f"<{len(values)}f", *values)))
    numbers = b"".join(varint(int(value) & (1 << 64) - 1) for value in values)
    return field(_INTEGERS, field(1, numbers))


def decode(data: bytes, wanted: Container[str]) -> dict[str, list[Any]]:
    """Return those lists of an example that are wanted, by name.

    Raises:
        DamagedDataError: if it is no example.
    """
    found: dict[str, list[Any]] = {}
    try:
        for _, features in fields(data):
            for _, entry in fields(_message(features)):
                parts = dict(fields(_message(entry)))
                name = str(_message(parts[1]), "utf-8")
                if name in wanted:
                    found[name] = _decode_list(_message(parts[2])) if 2 in parts else []
    except (KeyError, ValueError, struct.error) as error:
        raise DamagedDataError(f"it is not a tf.train.Example: {error}") from None
    return found


def _decode_list(data: memoryview) -> list[Any]:
    found: list[Any] = []
    for kind, values in fields(data):
        for _, value in fields(_message(values)):
            if kind == _BYTES:
                found.append(bytes(_message(value)))
            elif kind == _FLOATS:
                found += struct.unpack(f"<{len(_message(value)) // 4}f", _message(value))
            elif isinstance(value, int):
                found.append(_signed(value))
            else:
                found += map(_signed, varints(value))
    return found


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number stands where a message should")
    return value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
