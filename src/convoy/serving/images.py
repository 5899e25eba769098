"""Decoding of image files in requests to the pixels that a model takes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from math import prod

import numpy as np
from convoy.serving.errors import invalid
from convoy.serving.signature import TensorSpec

# A file of a few kilobytes can decode to gigabytes of pixels.
MAX_PIXELS = 50_000_000


def decode_images(files: Sequence[bytes], shape: Sequence[int], spec: TensorSpec) -> np.ndarray:
    """Return the pixels of several image files as a batch.

    Args:
        files: the image files.
        shape: the shape that the request gives for them.
        spec: the input that they are for.

    Raises:
        ServingError: if the shape has another number of files, or one cannot be decoded.
    """
    if not files or len(files) != prod(shape):
        raise invalid(f"input {spec.name!r}: {len(files)} strings for the shape {list(shape)}.")
    return np.stack([decode_image(file, spec) for file in files])


def decode_image(data: bytes, spec: TensorSpec) -> np.ndarray:
    """Return the pixels of an image file, in the shape of one sample.

    The image is resized until it covers the shape, then cropped at the centre.

    Args:
        data: a JPEG, a PNG, or another format that Pillow reads.
        spec: the input that the image is for.

    Raises:
        ServingError: if the bytes are not an image, or the input does not take images.
    """
    if not spec.is_image:
        raise invalid(
            f"input {spec.name!r} takes {spec.dtype} of shape {list(spec.shape)}, not bytes."
        )
    from PIL import Image, ImageOps, UnidentifiedImageError

    height, width, channels = spec.shape
    try:
        with warnings.catch_warnings():
            # Pillow warns about large images and unusual metadata.
            warnings.simplefilter("ignore")
            opened = Image.open(io.BytesIO(data))
            if opened.width * opened.height > MAX_PIXELS:
                raise invalid(
                    f"The image has {opened.width} x {opened.height} pixels; at most "
                    f"{MAX_PIXELS} are read."
                )
            image = ImageOps.exif_transpose(opened).convert("L" if channels == 1 else "RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise invalid("The bytes are not an image that can be read.") from None
    fitted = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(fitted, np.uint8).reshape(height, width, channels)
