"""Image files: small ones in every format, damaged, and crafted to be large."""

import functools
import io
import random
import struct
import zlib
from collections import Counter

import numpy as np
from convoy.serving.errors import ServingError
from convoy.serving.images import decode_image
from convoy.serving.signature import TensorSpec
from PIL import Image

from .mutation import EDGES, mutate

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
# Files of formats that the documentation does not name; some start programs elsewhere.
FOREIGN = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n",
    b"<svg xmlns='http://www.w3.org/2000/svg' width='8' height='8'/>",
    b"\x00\x00\x00\x20ftypavif\x00\x00\x00\x00avifmif1miafMA1B",
    b"8BPS\x00\x01" + bytes(30),
    b"",
)


@functools.cache
def encoded(kind, seed):
    """Return an intact image of some size up to 40 x 40."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 41, 2)
    pixels = rng.integers(0, 256, (height, width, 3), "uint8")
    settings = {"progressive": bool(seed % 2)} if kind == "JPEG" else {}
    if kind == "JPEG" and seed % 3 == 0:
        settings["exif"] = b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"
    file = io.BytesIO()
    Image.fromarray(pixels).convert("L" if seed % 5 == 0 else "RGB").save(file, kind, **settings)
    return file.getvalue()


def png(width, height, rows):
    """Return a PNG that claims a size, and has the data of some rows of zeros."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(min(rows * (width + 1), 1 << 24)), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def generate(rng):
    """Return the bytes of one image: intact, damaged, crafted or foreign."""
    kind = rng.randrange(8)
    if kind == 0:
        return png(rng.choice((1, 8, *EDGES[-6:])), rng.choice((1, 8, *EDGES[-6:])), 1)
    if kind == 1:
        return rng.choice(FOREIGN)
    data = encoded(rng.choice(FORMATS), rng.randrange(12))
    return data if kind == 2 else mutate(rng, data)


class ImageFuzz:
    """Decodes images of requests."""

    SPEC = TensorSpec("image", "uint8", (8, 8, 3))

    def __init__(self, seed):
        self.rng = random.Random(f"{seed}/ImageFuzz")
        self.outcomes = Counter()
        self.faults = []

    def run_one(self):
        data = generate(self.rng)
        try:
            pixels = decode_image(data, self.SPEC)
            outcome = "decoded"
            if (pixels.shape, pixels.dtype) != (self.SPEC.shape, np.uint8):
                self.faults.append(f"{pixels.shape} {pixels.dtype} of {data.hex()}"[:2000])
        except ServingError:
            outcome = "refused"
        except Exception as error:
            outcome = type(error).__name__
            self.faults.append(f"{error!r}: {data.hex()}"[:2000])
        self.outcomes[outcome] += 1
