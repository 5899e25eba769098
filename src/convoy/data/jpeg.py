"""Decoding of compressed images: a part of an image, resized.

JPEGs are decoded by libjpeg-turbo through a native library, which decodes no more than the part;
other formats, and JPEGs where the library was not built, by OpenCV.
"""

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from convoy.data.records import DamagedDataError
from convoy.native_library import installed_file

# Markers "start of frame", which have the size: all from 0xC0 on but those of tables.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN = 0xDA
# Results of the native decoder.
_DONE, _DAMAGED = 0, 1
# A JPEG takes a bit or more for each block of 8 x 8 pixels, so real ones have fewer per byte. A
# damaged size would take minutes and gigabytes to decode.
_MAX_PIXELS_PER_BYTE = 4096
_MAX_PIXELS = 200_000_000
# JMSG_LENGTH_MAX
_MAX_MESSAGE = 200

Area = tuple[float, float, float, float]
"""Top, left, bottom and right of a part of an image, from 0 to 1."""


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class Header(NamedTuple):
    """The header of a JPEG.

    Attributes:
        height: height of the image.
        width: width of the image.
        channels: 1 for grey, 3 for colour, 4 for CMYK.
        scan: offset of the compressed pixels.
    """

    height: int
    width: int
    channels: int
    scan: int


def read_header(data: bytes) -> Header | None:
    """Return the header of a JPEG; `None` if the data is no JPEG.

    Raises:
        DamagedDataError: if the header is incomplete, or its size cannot be true.
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
            _check_size(size[0] * size[1], len(data))
            return Header(*size, place)
        place += 2 + length
    raise DamagedDataError("it is a JPEG without a complete header")


def _check_size(pixels: int, length: int) -> None:
    most = min(_MAX_PIXELS, _MAX_PIXELS_PER_BYTE * length)
    if pixels > most:
        raise DamagedDataError(
            f"it is a JPEG whose header claims {pixels} pixels; a file of {length} bytes has at "
            f"most {most}"
        )


def decode_part(data: bytes, box: Box, out: np.ndarray, *, flip: bool = False) -> None:
    """Decode a part of an image, resized, into an array.

    If the part is at least twice as large as the result, the decoder itself reduces the resolution:
    this is faster, and averages pixels better than bilinear sampling.

    Args:
        data: a compressed image.
        box: the part.
        out: array of bytes of shape `(height, width, 3)`, which is overwritten.
        flip: whether the part is flipped from left to right.

    Raises:
        DamagedDataError: if the image cannot be decoded or is incomplete.
    """
    header = read_header(data)
    if header is None:
        _decode_by_opencv(data, box, 1, out, flip)
        return
    _check_end(data, header)
    height, width = out.shape[:2]
    shrink = 1
    while shrink < 8 and min(box.height // height, box.width // width) >= 2 * shrink:
        shrink *= 2
    if not _decode_by_turbo(data, box, shrink, out, flip):
        _decode_by_opencv(data, box, shrink, out, flip)


class _Part(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32)
        for name in (*Box._fields, "shrink", "flip", "out_height", "out_width")
    ]


@cache
def _turbo() -> Any:
    """Return the native library; `None` if it was not built or does not load."""
    path = installed_file("keras-convoy", "libconvoy_jpeg.so")
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    library.convoy_decode_part.argtypes = [
        ctypes.c_char_p,
        ctypes.c_int64,
        ctypes.POINTER(_Part),
        ctypes.c_void_p,
        ctypes.c_char_p,
    ]
    return library


def _decode_by_turbo(data: bytes, box: Box, shrink: int, out: np.ndarray, flip: bool) -> bool:
    """Decode a part of a JPEG into an array; return whether the native library can do so."""
    library = _turbo()
    if library is None:
        return False
    part = _Part(*box, shrink, flip, *out.shape[:2])
    message = ctypes.create_string_buffer(_MAX_MESSAGE)
    outcome = library.convoy_decode_part(
        data, len(data), ctypes.byref(part), out.ctypes.data, message
    )
    if outcome == _DAMAGED:
        raise DamagedDataError(f"it cannot be decoded: {message.value.decode(errors='replace')}")
    return outcome == _DONE


def _decode_by_opencv(data: bytes, box: Box, shrink: int, out: np.ndarray, flip: bool) -> None:
    """Decode a whole image, and resize a part of it into an array."""
    import cv2

    height, width = out.shape[:2]
    pixels = _decode(data, shrink)
    top, left = box.top // shrink, box.left // shrink
    part = pixels[top : top + box.height // shrink, left : left + box.width // shrink]
    if not part.size:
        raise DamagedDataError(f"it is smaller than its header says: {pixels.shape[:2]}")
    resized = cv2.resize(part, (width, height), interpolation=cv2.INTER_LINEAR)
    if flip:
        resized = cv2.flip(resized, 1)
    cv2.cvtColor(resized, cv2.COLOR_BGR2RGB, dst=out)


def check(data: bytes) -> None:
    """Check that an image is complete. JPEGs are not decoded for this.

    Raises:
        DamagedDataError: if it is not complete.
    """
    header = read_header(data)
    if header is None:
        _decode(data, 1)
    else:
        _check_end(data, header)


def as_plain_jpeg(data: bytes) -> bytes:
    """Return an image as a grey or RGB JPEG: unchanged if it is one, else re-encoded.

    Raises:
        DamagedDataError: if it is not complete.
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
    """Reject a JPEG that was cut short: decoders would fill in the missing pixels."""
    if not data.endswith(b"\xff\xd9") and data.find(b"\xff\xd9", header.scan) < 0:
        raise DamagedDataError("it is a JPEG that ends before its last pixel")


def _decode(data: bytes, shrink: int) -> np.ndarray:
    import cv2

    how = getattr(cv2, "IMREAD_COLOR" if shrink == 1 else f"IMREAD_REDUCED_COLOR_{shrink}")
    try:
        # The orientation that a camera recorded is ignored, as other loaders do.
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), how | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise DamagedDataError(f"it cannot be decoded: {error.err}") from None
    if pixels is None:
        raise DamagedDataError("it cannot be decoded")
    return pixels
