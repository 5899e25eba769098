"""libjpeg-turbo, through the native library: where it was built, it decodes parts of JPEGs."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from convoy.data.records import DamagedDataError

if TYPE_CHECKING:
    from convoy.data.jpeg import Box

_DONE, _DAMAGED = 0, 1
# JMSG_LENGTH_MAX
_LONGEST_MESSAGE = 200


class _Part(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32)
        for name in (
            "top",
            "left",
            "height",
            "width",
            "shrink",
            "mirrored",
            "out_height",
            "out_width",
        )
    ]


@cache
def _library() -> Any:
    """Return the native library, or `None` where it was not built or does not load."""
    try:
        files: Any = metadata.files("keras-convoy") or ()
        paths = (Path(file.locate()) for file in files if file.name == "libconvoy_jpeg.so")
        library = ctypes.CDLL(str(next(path for path in paths if path.exists())))
    except (metadata.PackageNotFoundError, StopIteration, OSError):
        return None
    library.convoy_decode_part.argtypes = [
        ctypes.c_char_p,
        ctypes.c_int64,
        ctypes.POINTER(_Part),
        ctypes.c_void_p,
        ctypes.c_char_p,
    ]
    return library


def is_available() -> bool:
    return _library() is not None


def decode_part(data: bytes, box: Box, shrink: int, out: np.ndarray, *, mirrored: bool) -> bool:
    """Put a part of a JPEG, brought to size, into an array of bytes; say whether that was possible.

    Raises:
        DamagedDataError: if it cannot be decoded.
    """
    library = _library()
    if library is None:
        return False
    part = _Part(*box, shrink, mirrored, *out.shape[:2])
    message = ctypes.create_string_buffer(_LONGEST_MESSAGE)
    outcome = library.convoy_decode_part(
        data, len(data), ctypes.byref(part), out.ctypes.data, message
    )
    if outcome == _DAMAGED:
        raise DamagedDataError(f"it cannot be decoded: {message.value.decode(errors='replace')}")
    return outcome == _DONE
