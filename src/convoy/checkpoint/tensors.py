"""Reader and writer of the safetensors format: a length, a JSON header, and the arrays' bytes.

Such a file contains no code.
"""

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import ml_dtypes
import numpy as np
from convoy.checkpoint import files
from convoy.checkpoint.errors import DamagedError
from convoy.checkpoint.manifest import Shape, Size, describe_problem
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

Arrays = Mapping[str, np.ndarray]

# Headers are far smaller; without a limit, a damaged length would allocate gigabytes.
_MAX_HEADER_BYTES = 100 << 20

_TYPES = {
    "BOOL": np.dtype(bool),
    "U8": np.dtype("uint8"),
    "I8": np.dtype("int8"),
    "U16": np.dtype("uint16"),
    "I16": np.dtype("int16"),
    "U32": np.dtype("uint32"),
    "I32": np.dtype("int32"),
    "U64": np.dtype("uint64"),
    "I64": np.dtype("int64"),
    "F16": np.dtype("float16"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F32": np.dtype("float32"),
    "F64": np.dtype("float64"),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def describe(arrays: Arrays) -> dict[str, Any]:
    """Return the header for some arrays: type, shape and offsets of each."""
    header = {}
    offset = 0
    for name, array in arrays.items():
        end = offset + array.nbytes
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    return header


def write(path: Path, arrays: Arrays) -> dict[str, str]:
    """Write arrays to a new file, and sync it to the disk.

    Returns:
        The SHA-256 of each array's bytes by name, and that of the header under the name `""`.
    """
    header = json.dumps(describe(arrays)).encode()
    header += b" " * (-len(header) % 8)
    head = len(header).to_bytes(8, "little") + header
    checksums = {"": hashlib.sha256(head).hexdigest()}
    with path.open("xb") as file:
        file.write(head)
        for name, array in arrays.items():
            data = as_bytes(array)
            checksums[name] = hashlib.sha256(data).hexdigest()
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return checksums


def read(path: Path, checksums: Mapping[str, str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and arrays of a file.

    The header is compared with the size of the file before memory is allocated.

    Args:
        path: the file.
        checksums: the return value of `write`.

    Raises:
        DamagedError: if the file differs from what was written.
        OSError: if the file cannot be read now.
    """
    with files.open_file(path) as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        header = file.read(length) if length <= _MAX_HEADER_BYTES else b""
        if hashlib.sha256(start + header).hexdigest() != checksums[""]:
            raise DamagedError(f"{path} is damaged: the checksum of its header is wrong.")
        size = os.fstat(file.fileno()).st_size - len(start) - length
        for name, entry in _checked_entries(path, header, checksums, size).items():
            data = bytearray(entry.nbytes)
            if file.readinto(data) != len(data):
                raise DamagedError(f"{path} is truncated: {name!r} is incomplete.")
            if hashlib.sha256(data).hexdigest() != checksums[name]:
                raise DamagedError(f"{path} is damaged: the checksum of {name!r} is wrong.")
            yield name, np.frombuffer(data, _TYPES[entry.dtype]).reshape(entry.shape)


def _known_type(name: str) -> str:
    if name not in _TYPES:
        raise ValueError(f"{name!r} is not a type of arrays")
    return name


class _Entry(BaseModel):
    """Type, shape and offsets of an array."""

    model_config = ConfigDict(strict=True)

    dtype: Annotated[str, AfterValidator(_known_type)]
    shape: Shape
    data_offsets: Annotated[list[Size], Field(min_length=2, max_length=2)]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _TYPES[self.dtype].itemsize


def _checked_entries(
    path: Path, header: bytes, names: Collection[str], size: int
) -> dict[str, _Entry]:
    """Return the entries of a header, whose arrays follow each other and fill the file."""
    try:
        entries = _ENTRIES.validate_json(header)
    except ValidationError as error:
        problem = describe_problem(error)
        raise DamagedError(f"{path} is not a file of arrays: {problem}.") from None
    offset = 0
    for name, entry in entries.items():
        if entry.data_offsets != [offset, offset + entry.nbytes]:
            raise DamagedError(f"{path} is damaged: {name!r} is not at the expected position.")
        offset += entry.nbytes
    if "" in entries or entries.keys() | {""} != set(names):
        raise DamagedError(f"{path} does not have the arrays that the manifest lists.")
    if size != offset:
        problem = "truncated" if size < offset else "damaged: it has extra bytes at its end"
        raise DamagedError(f"{path} is {problem}: {size} bytes of arrays instead of {offset}.")
    return entries


_ENTRIES = TypeAdapter(dict[str, _Entry])


def as_bytes(array: np.ndarray) -> memoryview:
    """Return the bytes of an array in row-major order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
