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
from tests.serving import bad_files

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
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(min(rows * (width + 1), 1 << 24)), 9)
    chunks = bad_files.chunk(b"IHDR", header), bad_files.chunk(b"IDAT", data)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + bad_files.chunk(b"IEND", b"")


def compressed_png(rng):
    """Return a PNG with texts or profiles that are long when they are decompressed."""
    kinds = rng.choices((b"zTXt", b"iTXt", b"iCCP"), k=rng.randint(1, 4))
    size = rng.choice((10, 1000, 1 << 20, 3 << 20))
    chunks = [bad_files.compressed_chunk(kind, size, rng.choice(TEXT_KEYS)) for kind in kinds]
    return bad_files.png_with(*chunks)


def png_of_chunks(rng):
    kind, data = rng.choice(CHUNKS), rng.randbytes(rng.choice((0, 1, 20)))
    return bad_files.png_with(*[bad_files.chunk(kind, data)] * rng.choice(COUNTS))


def jpeg_of_segments(rng):
    """Return a JPEG with many segments, or padding."""
    if not rng.randrange(4):
        return bad_files.jpeg_with(rng.choice((b"\xff", b"\0", b"\xff\0")) * rng.choice(COUNTS))
    marker, data = rng.randrange(0xC0, 0xFF), rng.randbytes(rng.choice((0, 1, 12, 65)))
    return bad_files.jpeg_with(bad_files.segment(marker, data) * rng.choice(COUNTS))


def jpeg_of_tags(rng):
    """Return a JPEG with EXIF data whose tags claim any amount of data."""
    tags = [
        (rng.choice((0x112, rng.randrange(1 << 16))), rng.randrange(14), rng.choice(EDGES), value)
        for value in [rng.randbytes(4) for _ in range(rng.choice((0, 1, 30, 5000)))]
    ]
    return bad_files.jpeg_with(bad_files.segment(0xE1, bad_files.exif_of(tags, rng.choice("<>"))))


def gif_of_blocks(rng):
    label, size = rng.choice((0xFE, 0xFF, 0xF9, 0x01)), rng.choice((1, 4, 255))
    blocks = (bytes([size]) + rng.randbytes(size)) * rng.choice(COUNTS)
    return bad_files.gif_with(bytes([ord("!"), label]) + blocks + b"\0")


def webp_of_chunks(rng):
    return bad_files.webp_with(rng.choice((b"abcd", b"ANMF", b"EXIF", b"VP8 ")), rng.choice(COUNTS))


def bmp_of_runs(rng):
    """Return a compressed BMP whose runs may be too long or missing."""
    width, height = rng.choice((1, 8, 300, 5000)), rng.choice((1, 8, 300, 5000))
    row = b"".join(bytes([rng.choice((0, 1, 255)), rng.randrange(4)]) for _ in range(8))
    return bad_files.run_length_bmp(width, height, row * rng.choice((1, 8, 300)))


COUNTS = (1, 10, 1000, 70_000)
TEXT_KEYS = (b"Comment", b"XML:com.adobe.xmp", b"Raw profile type exif", b"exif")
CHUNKS = (b"prVt", b"tEXt", b"iTXt", b"eXIf", b"gAMA", b"tRNS", b"fcTL", b"IDAT")
CRAFTED = (
    compressed_png,
    png_of_chunks,
    jpeg_of_segments,
    jpeg_of_tags,
    gif_of_blocks,
    webp_of_chunks,
    bmp_of_runs,
)


def generate(rng):
    """Return the bytes of one image: intact, damaged, crafted or foreign."""
    kind = rng.randrange(10)
    if kind == 0:
        return png(rng.choice((1, 8, *EDGES[-6:])), rng.choice((1, 8, *EDGES[-6:])), 1)
    if kind == 1:
        return rng.choice(FOREIGN)
    is_crafted = kind <= 3
    data = (
        rng.choice(CRAFTED)(rng) if is_crafted else encoded(rng.choice(FORMATS), rng.randrange(12))
    )
    return data if kind in (2, 4) else mutate(rng, data)


class ImageFuzz:
    """Decodes images of requests."""

    SPEC = TensorSpec("image", "uint8", (8, 8, 3))

    def __init__(self, seed):
        self.rng = random.Random(f"{seed}/ImageFuzz")
        self.outcomes = Counter()
        self.faults = []

    def run_one(self):
        self.run_on(generate(self.rng))

    def run_on(self, data):
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
