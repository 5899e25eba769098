"""Decoding of image files in requests to the pixels that a model takes.

The structure of all files of a request is checked before the first one is decoded, because a file
of a hundred bytes can decode to gigabytes of pixels. Then one image at a time is decoded.
"""

from __future__ import annotations

import io
import math
import struct
import warnings
import zlib
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from convoy.serving import admission
from convoy.serving.decoding import check_thread
from convoy.serving.errors import invalid, too_large
from convoy.serving.image_header import (
    FORMATS,
    PART_BYTES,
    Header,
    PartCounter,
    essential_parts,
    read_header,
)
from convoy.serving.image_orientation import MAX_TEXT_BYTES, orientation
from convoy.serving.signature import TensorSpec

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_SIDE = 16_384
MAX_PIXELS = 50_000_000
# Maximum sum of the pixels of all images in a request.
MAX_REQUEST_PIXELS = 100_000_000
# Maximum sum of the pixels of all compressed BMP images in a request, and time that one of their
# pixels takes, relative to other formats: Pillow decodes them in Python.
MAX_RUN_LENGTH_PIXELS = 4_000_000
RUN_LENGTH_COST = 32
# Time to decompress the longest text of a file, in pixels that take as long.
TEXT_COST = 1_000_000
# Memory for each pixel while an image is decoded. Pillow's image takes four bytes, and one more
# copy when it is converted or turned. The decoder of WebP keeps two more copies, and returns a
# third one. A decoder of JPEG that buffers coefficients takes two bytes for each of up to four.
PIXEL_BYTES = 8
WEBP_PIXEL_BYTES = 16
BUFFERED_PIXEL_BYTES = 12
# Copies of a file: its essential parts, and what Pillow or `orientation` reads of it. Pillow makes
# two of a WebP.
FILE_COPIES = 2
WEBP_FILE_COPIES = 3
# Memory for each pixel of the result: Pillow's image of it, with one that has only the right width,
# and copies of its bytes.
RESULT_PIXEL_BYTES = 16
# Memory for a decoder's state.
DECODER_BYTES = 1 << 18
# Decoders take memory for complete blocks of pixels.
_BLOCK_SIDE = 32
_UNREADABLE = f"The bytes are not an image that can be read: one of {', '.join(FORMATS)}."
_DAMAGED = f"{_UNREADABLE} It may be cut short or damaged."
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# The passes of an interlaced PNG: first column and row, and steps to the next ones.
_ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
# Bytes that are decompressed at a time, to count them.
_DEFLATED_BYTES = 1 << 14
_INFLATED_BYTES = 1 << 16


def decode_images(
    files: Sequence[bytes], shape: Sequence[int], spec: TensorSpec, max_samples: int
) -> np.ndarray:
    """Return the pixels of several image files as a batch.

    Args:
        files: the image files.
        shape: the shape that the request gives for them.
        spec: the input that they are for.
        max_samples: maximum number of files.

    Raises:
        ServingError: if the shape has another number of files, or one cannot be decoded.
    """
    if not files or len(files) != prod(shape):
        raise invalid(
            f"input {spec.name!r} has {len(files)} strings for the shape {list(shape)}; expected "
            f"{max(prod(shape), 1)}."
        )
    admission.check_samples(len(files), max_samples)
    spec.check_takes_images()
    counter = PartCounter()
    headers = [_read_header(file, counter) for file in files]
    _check_sum(headers)
    check_thread(sum(map(_cost, headers)))
    if reservation := admission.current():
        # Images are decoded one after the other. Only the results remain.
        largest = max(_decoder_bytes(*pair) for pair in zip(files, headers, strict=True))
        shared = RESULT_PIXEL_BYTES * prod(spec.shape[:2]) + PART_BYTES * counter.count
        reservation.reserve(largest + shared + len(files) * spec.values)
    batch = np.empty((len(files), *spec.shape), np.uint8)
    for sample, file, header in zip(batch, files, headers, strict=True):
        sample[...] = _decode(file, header, spec)
    return batch


def decode_image(data: bytes, spec: TensorSpec) -> np.ndarray:
    """Return the pixels of an image file, in the shape of one sample.

    The image is resized until it covers the shape, then cropped at the centre.

    Args:
        data: a file in one of `FORMATS`.
        spec: the input that the image is for.

    Raises:
        ServingError: if the bytes are not an image, or the input does not take images.
    """
    pixels: np.ndarray = decode_images([data], [1], spec, 1)[0]
    return pixels


def _read_header(data: bytes, counter: PartCounter) -> Header:
    """Return what the structure of an image file tells, after checking its size.

    Raises:
        ServingError: if it is not an image, or too large.
    """
    try:
        header = read_header(data, counter)
    except (ValueError, IndexError, struct.error):
        raise invalid(_DAMAGED) from None
    if header is None:
        raise invalid(_UNREADABLE)
    width, height = header.width, header.height
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise too_large(
            f"The image has {width} x {height} pixels; at most {MAX_PIXELS} are read, and "
            f"{MAX_SIDE} in a row or column. Send a smaller image."
        )
    return header


def _check_sum(headers: Sequence[Header]) -> None:
    """Check the sums of the pixels of a request.

    Raises:
        ServingError: if they are too large.
    """
    total = sum(header.pixels for header in headers)
    if total > MAX_REQUEST_PIXELS:
        raise too_large(
            f"The images of the request have {total} pixels; at most {MAX_REQUEST_PIXELS} "
            "are read in one. Send smaller images, or several requests."
        )
    compressed = sum(header.pixels for header in headers if header.is_run_length)
    if compressed > MAX_RUN_LENGTH_PIXELS:
        raise too_large(
            f"The compressed BMP images of the request have {compressed} pixels; at most "
            f"{MAX_RUN_LENGTH_PIXELS} are read in one. Save them as PNG."
        )


def _cost(header: Header) -> int:
    """Return the time to decode an image, in pixels that take as long."""
    pixels = RUN_LENGTH_COST * header.pixels if header.is_run_length else header.pixels
    return pixels + (TEXT_COST if header.metadata.has_long_texts else 0)


def _decoder_bytes(data: bytes, header: Header) -> int:
    """Return the memory that decoding an image takes."""
    blocks = math.ceil(header.width / _BLOCK_SIDE) * math.ceil(header.height / _BLOCK_SIDE)
    pixel_bytes, copies = PIXEL_BYTES, FILE_COPIES
    if header.format == "WEBP":
        pixel_bytes, copies = WEBP_PIXEL_BYTES, WEBP_FILE_COPIES
    elif header.is_buffered:
        pixel_bytes = BUFFERED_PIXEL_BYTES
    # A text, its lines, and the bytes that they stand for.
    text = 4 * MAX_TEXT_BYTES if header.metadata.has_long_texts else 0
    return DECODER_BYTES + blocks * _BLOCK_SIDE**2 * pixel_bytes + copies * len(data) + text


def _decode(data: bytes, header: Header, spec: TensorSpec) -> np.ndarray:
    from PIL import Image, ImageOps

    height, width, channels = spec.shape
    try:
        with warnings.catch_warnings():
            # Pillow warns about unusual palettes.
            warnings.simplefilter("ignore")
            image = _opened(data, header, "L" if channels == 1 else "RGB")
            image = _turned(image, orientation(data, header.metadata))
            fitted = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    except Exception:  # Pillow's decoders raise anything for damaged files.
        raise invalid(_DAMAGED) from None
    return np.asarray(fitted, np.uint8).reshape(height, width, channels)


def _opened(data: bytes, header: Header, mode: str) -> Image:
    """Return the pixels of a file as an image of Pillow, and release everything else."""
    from PIL import Image

    file = essential_parts(data, header)
    if header.format == "PNG":
        _check_png(file)
    opened = Image.open(io.BytesIO(file), formats=(header.format,))
    if opened.size != (header.width, header.height):
        raise ValueError(f"Pillow finds {opened.size}, not {header.width} x {header.height}.")
    if opened.mode == mode and header.format != "WEBP":
        # Avoids copies, because the pixels may take hundreds of megabytes.
        opened.load()
        return opened
    # The decoder of WebP holds copies of the pixels for as long as the opened image exists.
    return opened.convert(mode)


def _turned(image: Image, turn: int) -> Image:
    """Return an image in its orientation."""
    from PIL.Image import Transpose

    method = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }.get(turn)
    return image if method is None else image.transpose(method)


def _check_png(data: bytes) -> None:
    """Check that a PNG has the data of all its rows; Pillow fills those that are missing.

    Raises:
        ValueError: if it has not.
        struct.error: if the file ends before the mark of its end.
    """
    header = struct.unpack_from(">IIBBBBB", data, 16)
    width, height, depth, color, _, _, interlaced = header
    bits = depth * _PNG_CHANNELS[color]
    expected = 0
    for x, y, step_x, step_y in _ADAM7 if interlaced else ((0, 0, 1, 1),):
        columns, rows = math.ceil((width - x) / step_x), math.ceil((height - y) / step_y)
        if columns > 0 and rows > 0:
            expected += rows * (1 + math.ceil(columns * bits / 8))
    position, found, kind = len(_PNG_START), 0, b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"IDAT":
            found = _inflated_bytes(
                memoryview(data)[position + 8 : position + 8 + length], expected
            )
        position += 12 + length
    if found < expected:
        raise ValueError(f"The PNG has {found} bytes of pixels; its size needs {expected}.")


def _inflated_bytes(data: memoryview, expected: int) -> int:
    """Return the length of data after decompression, or a number that is at least the expected."""
    stream, found = zlib.decompressobj(), 0
    for start in range(0, len(data), _DEFLATED_BYTES):
        part: bytes | memoryview = data[start : start + _DEFLATED_BYTES]
        while part and found < expected and not stream.eof:
            found += len(stream.decompress(part, _INFLATED_BYTES))
            part = stream.unconsumed_tail
    return found
