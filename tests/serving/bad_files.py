"""Images and versions that harm a server which does not check them."""

import struct
import zlib

import jax
import keras
import numpy as np
from convoy.serving import artifact

CALLBACK = "xla_ffi_python_cpu_callback"


def picture():
    image = keras.Input((8, 8, 3), name="image", dtype="uint8")
    return keras.Model(image, keras.layers.GlobalAveragePooling2D()(keras.ops.cast(image, float)))


def png(width, height, rows):
    """A PNG whose data have some of its rows, and end properly."""
    return png_of(width, height, bytes(rows * (1 + 3 * width)))


def png_of(width, height, data, interlaced=0):
    """A PNG with any bytes as its pixels."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, interlaced))]
    chunks += [(b"IDAT", zlib.compress(data, 9)), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


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
