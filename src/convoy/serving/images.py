"""A picture's file, such as a JPEG, as the pixels that a model takes."""

from __future__ import annotations

import io
import warnings

import numpy as np
from convoy.serving.errors import invalid
from convoy.serving.signature import Tensor

# A file of some kilobytes can ask for gigabytes of pixels.
MOST_PIXELS = 50_000_000


def decode_picture(data: bytes, tensor: Tensor) -> np.ndarray:
    """Return a picture's pixels, of one sample's shape.

    It is scaled until it covers the shape, and its middle is taken.

    Args:
        data: the file: JPEG, PNG, or what else Pillow reads.
        tensor: the input that it is for.

    Raises:
        ServingError: if it is not a picture, or the input takes none.
    """
    if not tensor.is_image:
        raise invalid(
            f"input {tensor.name!r} takes {tensor.dtype} of shape {list(tensor.shape)}, not bytes."
        )
    from PIL import Image, ImageOps, UnidentifiedImageError

    height, width, channels = tensor.shape
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pictures that are large, or oddly written
            opened = Image.open(io.BytesIO(data))
            if opened.width * opened.height > MOST_PIXELS:
                raise invalid(
                    f"The image has {opened.width} x {opened.height} pixels; at most "
                    f"{MOST_PIXELS} are read."
                )
            picture = ImageOps.exif_transpose(opened).convert("L" if channels == 1 else "RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise invalid("The bytes are not an image that can be read.") from None
    fitted = ImageOps.fit(picture, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(fitted, np.uint8).reshape(height, width, channels)
