"""Bounds for the work of parsing a protocol buffer, found without parsing it.

A message of a few megabytes can contain millions of small messages, each of which takes far more
memory when it is parsed than the two bytes that it is sent in.
"""

from google.protobuf.descriptor import Descriptor

# Smaller messages are parsed without a check, because they cannot contain many fields.
UNCHECKED_BYTES = 1 << 16
# Requests have a few fields per input and sample.
MAX_FIELDS = 100_000

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def has_few_fields(data: bytes, message: Descriptor) -> bool:
    """Return whether a message, with the messages in it, has at most `MAX_FIELDS` fields.

    Damaged data is accepted here, because the parser rejects it.

    Args:
        data: the serialised message.
        message: its type.
    """
    if len(data) <= UNCHECKED_BYTES:
        return True
    remaining = MAX_FIELDS
    pending = [(0, len(data), message)]
    while pending:
        position, end, kind = pending.pop()
        while position < end:
            remaining -= 1
            if remaining < 0:
                return False
            try:
                tag, position = _varint(data, position)
                start, position = _skip(data, position, tag & 7)
            except (IndexError, ValueError):
                return True
            field = kind.fields_by_number.get(tag >> 3)
            if tag & 7 == _BYTES and field is not None and field.message_type is not None:
                pending.append((start, min(position, end), field.message_type))
    return True


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            return value, position
        if shift > 63:
            raise ValueError("A number has more than ten bytes.")


def _skip(data: bytes, position: int, wire_type: int) -> tuple[int, int]:
    """Return the positions of a field's content and of the end of the field."""
    if wire_type == _VARINT:
        return position, _varint(data, position)[1]
    if wire_type == _BYTES:
        length, start = _varint(data, position)
        return start, start + length
    sizes = {_FIXED64: 8, _FIXED32: 4}
    if wire_type not in sizes:
        raise ValueError(f"Wire type {wire_type} is not used.")
    return position, position + sizes[wire_type]
