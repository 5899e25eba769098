"""Decoding of image files in requests to the pixels that a model takes.

A file's format, width, height and length are checked before it is decoded, because a file of a
hundred bytes can decode to gigabytes of pixels.
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
from convoy.serving.signature import TensorSpec

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow supports more formats, but starts other programs for some of them.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MAX_SIDE = 16_384
MAX_PIXELS = 50_000_000
# Maximum sum of the pixels of all images in a request.
MAX_REQUEST_PIXELS = 100_000_000
# Maximum number of passes of a progressive JPEG. Usual files have ten; a pass of a few bytes takes
# as long to decode as one of megabytes.
MAX_JPEG_SCANS = 100
# An image takes four bytes per pixel, and one more copy when it is converted.
PIXEL_BYTES = 8
_UNREADABLE = f"The bytes are not an image that can be read: one of {', '.join(FORMATS)}."
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
_INFLATE_BYTES = 1 << 20


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
    _check_takes_images(spec)
    opened = [_open(file) for file in files]
    pixels = [image.width * image.height for image in opened]
    if sum(pixels) > MAX_REQUEST_PIXELS:
        raise too_large(
            f"The images of the request have {sum(pixels)} pixels; at most {MAX_REQUEST_PIXELS} "
            "are read in one. Send smaller images, or several requests."
        )
    check_thread(sum(pixels))
    if reservation := admission.current():
        # They are decoded one after the other.
        reservation.reserve(PIXEL_BYTES * max(pixels) + len(files) * spec.values)
    pairs = zip(files, opened, strict=True)
    return np.stack([_decode(file, image, spec) for file, image in pairs])


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


def _check_takes_images(spec: TensorSpec) -> None:
    if not spec.is_image:
        raise invalid(
            f"input {spec.name!r} takes {spec.dtype} of shape {list(spec.shape)}, not bytes."
        )


def _open(data: bytes) -> Image:
    """Return an image whose pixels are not decoded yet."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # Pillow warns about large images and unusual metadata.
            warnings.simplefilter("ignore")
            opened = Image.open(io.BytesIO(data), formats=FORMATS)
    except Exception:  # Pillow's readers raise anything for damaged files.
        raise invalid(_UNREADABLE) from None
    width, height = opened.size
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise too_large(
            f"The image has {width} x {height} pixels; at most {MAX_PIXELS} are read, and "
            f"{MAX_SIDE} in a row or column. Send a smaller image."
        )
    # In compressed data, each byte FF is followed by a zero, so the marker belongs to a scan or to
    # metadata.
    scans = data.count(b"\xff\xda") if data.startswith(b"\xff\xd8") else 0
    if scans > MAX_JPEG_SCANS:
        raise too_large(
            f"The JPEG has {scans} scans; at most {MAX_JPEG_SCANS} are read. Save it as a baseline "
            "JPEG."
        )
    return opened


def _decode(data: bytes, opened: Image, spec: TensorSpec) -> np.ndarray:
    from PIL import Image, ImageOps

    height, width, channels = spec.shape
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if opened.format == "PNG":
                _check_png(data)
            # Avoids copies, because the pixels may take hundreds of megabytes.
            ImageOps.exif_transpose(opened, in_place=True)
            mode = "L" if channels == 1 else "RGB"
            image = opened if opened.mode == mode else opened.convert(mode)
            fitted = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    except Exception:  # Pillow's decoders raise anything for damaged files.
        raise invalid(f"{_UNREADABLE} It may be cut short or damaged.") from None
    return np.asarray(fitted, np.uint8).reshape(height, width, channels)


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
    stream, position, found = zlib.decompressobj(), len(_PNG_START), 0
    kind = b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"IDAT":
            part = data[position + 8 : position + 8 + length]
            while part and found < expected and not stream.eof:
                found += len(stream.decompress(part, _INFLATE_BYTES))
                part = stream.unconsumed_tail
        position += 12 + length
    if found < expected:
        raise ValueError(f"The PNG has {found} bytes of pixels; its size needs {expected}.")
