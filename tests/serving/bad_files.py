"""Images and versions that harm a server which does not check them."""

import io
import struct
import zlib

import jax
import keras
import numpy as np
from convoy.serving import artifact
from PIL import Image

CALLBACK = "xla_ffi_python_cpu_callback"


def picture():
    image = keras.Input((8, 8, 3), name="image", dtype="uint8")
    return keras.Model(image, keras.layers.GlobalAveragePooling2D()(keras.ops.cast(image, float)))


def png(width, height, rows):
    """A PNG whose data have some of its rows, and end properly."""
    return png_of(width, height, bytes(rows * (1 + 3 * width)))


def png_of(width, height, data, interlaced=0, chunks=()):
    """A PNG with any bytes as its pixels, and any chunks before them."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, interlaced)
    ends = chunk(b"IDAT", zlib.compress(data, 9)), chunk(b"IEND", b"")
    return b"".join((b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), *chunks, *ends))


def chunk(kind, data):
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def compressed_chunk(kind, size, key=b"key"):
    """A chunk whose text or colour profile is a thousand times as long as the chunk."""
    between = {b"zTXt": b"\0\0", b"iTXt": b"\0\1\0\0\0", b"iCCP": b"\0\0"}[kind]
    return chunk(kind, key + between + zlib.compress(bytes(size), 9))


def png_with(*chunks):
    """A small PNG with any chunks before its pixels."""
    return png_of(8, 8, bytes(8 * 25), chunks=chunks)


def segment(marker, data):
    """A segment of a JPEG."""
    return struct.pack(">BBH", 0xFF, marker, 2 + len(data)) + data


def jpeg_with(data, size=(8, 8)):
    """A JPEG with any bytes after its first segment."""
    file = io.BytesIO()
    Image.new("RGB", size).save(file, "JPEG")
    return file.getvalue()[:20] + data + file.getvalue()[20:]


def gif_with(blocks):
    """A GIF with any blocks before its image."""
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "GIF")
    data = file.getvalue()
    start = 13 + (3 << 1 + (data[10] & 7))
    return data[:start] + blocks + data[start:]


def webp_with(kind, number):
    """A WebP with many chunks that are empty."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "WEBP", icc_profile=b"profile!")
    data = file.getvalue() + number * (kind + bytes(4))
    return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]


def run_length_bmp(width, height, runs):
    """A compressed BMP with a palette of two colours."""
    palette = bytes((0, 0, 0, 0, 9, 99, 199, 0))
    info = struct.pack("<IIIHHIIIIII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 2, 0)
    start = 14 + len(info) + len(palette)
    return struct.pack("<2sIII", b"BM", start + len(runs), 0, start) + info + palette + runs


def exif_of(entries, order=">"):
    """EXIF data with any tags: number, type, count and four bytes of each."""
    head = {">": b"MM\0*", "<": b"II*\0"}[order] + struct.pack(order + "I", 8)
    tags = b"".join(struct.pack(order + "HHI4s", *entry) for entry in entries)
    return b"Exif\0\0" + head + struct.pack(order + "H", len(entries)) + tags + bytes(4)


def with_custom_call(folder, source):
    """Write a version whose program calls back a Python function that does not exist.

    A process that runs it ends with SIGSEGV.
    """
    call = jax.ffi.ffi_call(CALLBACK, jax.ShapeDtypeStruct((1,), np.float32))
    exporting = jax.export.export(
        jax.jit(lambda constants, x: [call(x, index=np.uint64(99))]),
        platforms=["cpu"],
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(CALLBACK)],
    )
    code = exporting([], jax.ShapeDtypeStruct((1,), np.float32)).serialize()
    found = artifact.read(source)
    programs = {1: artifact.Program(bytes(code), ())}
    content = artifact.Artifact(found.signature, programs, {}, found.example)
    folder.mkdir()
    artifact.write(content, None, folder)
