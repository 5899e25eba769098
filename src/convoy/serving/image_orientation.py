"""Orientation of images, read from their metadata without decoding them.

Pillow reads all EXIF tags to find this one, and inflates texts a thousandfold.
"""

import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

# Pillow decompresses only so much of a text, too.
MAX_TEXT_BYTES = 1 << 20
# The orientation is at the beginning of XMP data. Editors append histories of several megabytes.
MAX_XMP_BYTES = 1 << 24
# Tags are sorted, and the orientation is one of the first.
_MAX_EXIF_TAGS = 1000

EXIF_START = b"Exif\0\0"
_EXIF_ORDERS = {b"MM\0*": ">", b"MM*\0": ">", b"II*\0": "<", b"II\0*": "<"}
_ORIENTATION_TAG, _EXIF_SHORT, _EXIF_LONG = 0x112, 3, 4
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')

# Start and end of bytes in a file.
Range = tuple[int, int]


class Text(NamedTuple):
    """The place of a text in a file.

    Attributes:
        start: its start.
        end: its end.
        is_compressed: whether it is compressed.
    """

    start: int
    end: int
    is_compressed: bool = False


@dataclass
class Metadata:
    """Places of what can tell the orientation of an image.

    Attributes:
        exif: the parts of the EXIF data.
        hex_exif: EXIF data as a text.
        xmp: a text with properties.
    """

    exif: list[Range] = field(default_factory=list)
    hex_exif: Text | None = None
    xmp: Text | None = None

    @property
    def has_long_texts(self) -> bool:
        """Whether reading the orientation can take megabytes and milliseconds."""
        return self.hex_exif is not None or (self.xmp is not None and self.xmp.is_compressed)


def orientation(data: bytes, metadata: Metadata) -> int:
    """Return how an image is turned: 1 to 8, as in EXIF data, or another number if it is not.

    Damaged metadata do not turn an image.
    """
    found = _exif_orientation(_exif(data, metadata))
    if found is None and metadata.xmp:
        text = _text(data, metadata.xmp)[:MAX_XMP_BYTES]
        match = _XMP_ORIENTATION.search(text)
        found = int(bytes(match[1])) if match else None
    return found or 1


def _exif(data: bytes, metadata: Metadata) -> bytes:
    if metadata.exif or metadata.hex_exif is None:
        return b"".join(data[start:end] for start, end in metadata.exif)
    # The first three lines are empty, the name, and the length.
    text = bytes(_text(data, metadata.hex_exif)[:MAX_TEXT_BYTES])
    lines = text.split(b"\n", 3)
    try:
        return bytes.fromhex(lines[3].decode("latin-1"))
    except (IndexError, ValueError):
        return b""


def _text(data: bytes, place: Text) -> bytes | memoryview:
    found = memoryview(data)[place.start : place.end]
    if not place.is_compressed:
        return found
    try:
        return zlib.decompressobj().decompress(found, MAX_TEXT_BYTES)
    except zlib.error:
        return b""


def _exif_orientation(exif: bytes) -> int | None:
    """Return the orientation in EXIF data, or `None` if there is none."""
    exif = exif.removeprefix(EXIF_START).removeprefix(EXIF_START)
    order = _EXIF_ORDERS.get(exif[:4])
    if order is None:
        return None
    try:
        (start,) = struct.unpack_from(f"{order}I", exif, 4)
        (tags,) = struct.unpack_from(f"{order}H", exif, start)
    except struct.error:
        return None
    entries = exif[start + 2 : start + 2 + 12 * min(tags, _MAX_EXIF_TAGS)]
    complete = entries[: len(entries) // 12 * 12]
    for tag, kind, count, value in struct.iter_unpack(f"{order}HHI4s", complete):
        if tag == _ORIENTATION_TAG and count == 1 and kind in (_EXIF_SHORT, _EXIF_LONG):
            code = "H" if kind == _EXIF_SHORT else "I"
            return int(struct.unpack_from(order + code, value)[0])
    return None
