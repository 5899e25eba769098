"""From a compressed image to a part of it in the size that a network takes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from convoy.data import turbo
from convoy.data.records import DamagedDataError

# Markers of frames: from the "start of frame" that has the size on, all but tables and restarts.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN = 0xDA


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class Header(NamedTuple):
    """What a JPEG says before its pixels.

    Attributes:
        height: of the image.
        width: of the image.
        channels: 3 if it has colours; 4 if they are those of a printer.
        scan: where the pixels begin.
    """

    height: int
    width: int
    channels: int
    scan: int


def read_header(data: bytes) -> Header | None:
    """Return what a JPEG says before its pixels; `None` if this is no JPEG.

    Raises:
        DamagedDataError: if it is one, but not whole.
    """
    if data[:2] != b"\xff\xd8":
        return None
    place, size = 2, None
    while place + 4 <= len(data):
        if data[place] != 0xFF:
            break
        marker = data[place + 1]
        if marker == 0xFF:  # padding
            place += 1
            continue
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        if marker in _FRAMES and place + 10 <= len(data):
            height = int.from_bytes(data[place + 5 : place + 7], "big")
            width = int.from_bytes(data[place + 7 : place + 9], "big")
            size = height, width, data[place + 9]
        if marker == _START_OF_SCAN and size is not None and all(size):
            return Header(*size, place)
        place += 2 + length
    raise DamagedDataError("it is a JPEG without a whole header")


def decode_part(data: bytes, box: Box, out: np.ndarray, *, mirrored: bool = False) -> None:
    """Decode an image, and put a part of it, brought to size, into an array.

    Where the part has at least twice as many pixels as are needed, the decoder makes fewer: that
    takes less time, and is a better mean over pixels than bilinear sampling would be.

    Args:
        data: a compressed image.
        box: the part.
        out: bytes of shape `(height, width, 3)`, which are overwritten.
        mirrored: whether left and right change places.

    Raises:
        DamagedDataError: if it cannot be decoded, or is cut short.
    """
    header = read_header(data)
    if header is None:
        _show(data, box, 1, out, mirrored)
        return
    _check_end(data, header)
    height, width = out.shape[:2]
    shrink = 1
    while shrink < 8 and min(box.height // height, box.width // width) >= 2 * shrink:
        shrink *= 2
    if not turbo.decode_part(data, box, shrink, out, mirrored=mirrored):
        _show(data, box, shrink, out, mirrored)


def _show(data: bytes, box: Box, shrink: int, out: np.ndarray, mirrored: bool) -> None:
    """Decode all of an image, and put a part of it into an array."""
    import cv2

    height, width = out.shape[:2]
    pixels = _decode(data, shrink)
    top, left = box.top // shrink, box.left // shrink
    part = pixels[top : top + box.height // shrink, left : left + box.width // shrink]
    if not part.size:
        raise DamagedDataError(f"it is smaller than it says: {pixels.shape[:2]}")
    resized = cv2.resize(part, (width, height), interpolation=cv2.INTER_LINEAR)
    if mirrored:
        resized = cv2.flip(resized, 1)
    cv2.cvtColor(resized, cv2.COLOR_BGR2RGB, dst=out)


def check(data: bytes) -> None:
    """Look at an image without decoding it, where it is a JPEG.

    Raises:
        DamagedDataError: if it is not whole.
    """
    header = read_header(data)
    if header is None:
        _decode(data, 1)
    else:
        _check_end(data, header)


def as_plain_jpeg(data: bytes) -> bytes:
    """Return an image as a JPEG that every program reads: as it is, if it is one.

    Raises:
        DamagedDataError: if it is not whole.
    """
    import cv2

    header = read_header(data)
    if header is not None and header.channels != 4:
        _check_end(data, header)
        return data
    _, encoded = cv2.imencode(".jpg", _decode(data, 1), [cv2.IMWRITE_JPEG_QUALITY, 95])
    return encoded.tobytes()


def size_of(data: bytes) -> tuple[int, int]:
    """Return height and width of an image.

    Raises:
        DamagedDataError: if it cannot be decoded.
    """
    header = read_header(data)
    if header is not None:
        return header.height, header.width
    height, width, _ = _decode(data, 1).shape
    return height, width


def _check_end(data: bytes, header: Header) -> None:
    """Refuse a JPEG that was cut short: decoders would make up the rest of it."""
    if not data.endswith(b"\xff\xd9") and data.find(b"\xff\xd9", header.scan) < 0:
        raise DamagedDataError("it is a JPEG that ends before its last pixel")


def _decode(data: bytes, shrink: int) -> np.ndarray:
    import cv2

    how = {
        1: cv2.IMREAD_COLOR,
        2: cv2.IMREAD_REDUCED_COLOR_2,
        4: cv2.IMREAD_REDUCED_COLOR_4,
        8: cv2.IMREAD_REDUCED_COLOR_8,
    }[shrink]
    try:
        # As it is stored, whatever a camera says about how it was held: so do all others.
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), how | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise DamagedDataError(f"it cannot be decoded: {error.err}") from None
    if pixels is None:
        raise DamagedDataError("it cannot be decoded")
    return pixels
