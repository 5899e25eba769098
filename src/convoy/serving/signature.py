"""Names, types and shapes of a served model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from convoy.serving.errors import invalid, show
from convoy.serving.tensorflow_serving_pb2 import DataType
from convoy.types import Json


class ProtocolNames(NamedTuple):
    """The names of one type.

    Attributes:
        tensorflow: TensorFlow's number.
        value_field: the field of `TensorProto` that lists its values, where they are not packed.
        open_inference: the Open Inference Protocol's name.
    """

    tensorflow: DataType
    value_field: str
    open_inference: str


TYPES = {
    "bool": ProtocolNames(DataType.DT_BOOL, "bool_val", "BOOL"),
    "uint8": ProtocolNames(DataType.DT_UINT8, "int_val", "UINT8"),
    "uint16": ProtocolNames(DataType.DT_UINT16, "int_val", "UINT16"),
    "uint32": ProtocolNames(DataType.DT_UINT32, "uint32_val", "UINT32"),
    "uint64": ProtocolNames(DataType.DT_UINT64, "uint64_val", "UINT64"),
    "int8": ProtocolNames(DataType.DT_INT8, "int_val", "INT8"),
    "int16": ProtocolNames(DataType.DT_INT16, "int_val", "INT16"),
    "int32": ProtocolNames(DataType.DT_INT32, "int_val", "INT32"),
    "int64": ProtocolNames(DataType.DT_INT64, "int64_val", "INT64"),
    "float16": ProtocolNames(DataType.DT_HALF, "half_val", "FP16"),
    "bfloat16": ProtocolNames(DataType.DT_BFLOAT16, "half_val", "BF16"),
    "float32": ProtocolNames(DataType.DT_FLOAT, "float_val", "FP32"),
    "float64": ProtocolNames(DataType.DT_DOUBLE, "double_val", "FP64"),
}
"""All types, by NumPy's names."""

NUMPY_NAMES: dict[int, str] = {names.tensorflow: name for name, names in TYPES.items()}
"""NumPy's names, by TensorFlow's numbers."""


Arrays = dict[str, np.ndarray]

# No model has more dimensions, and the work of a parser grows with them.
MAX_DIMENSIONS = 16


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model, without the batch dimension.

    Attributes:
        name: the name in requests and responses.
        dtype: NumPy's name of the type, or `bfloat16`.
        shape: the shape of one sample.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numpy_dtype(self) -> np.dtype:
        return np.dtype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype)

    @property
    def is_image(self) -> bool:
        """Whether an image file can be sent as a sample: uint8 pixels, greyscale or RGB."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[2] in (1, 3)

    @property
    def values(self) -> int:
        """Number of values in one sample."""
        return prod(self.shape)

    @property
    def sample_bytes(self) -> int:
        """Memory of one sample."""
        return self.values * self.numpy_dtype.itemsize

    def check_takes_images(self) -> None:
        """Check that an image file can be sent as a sample.

        Raises:
            ServingError: if it cannot.
        """
        if not self.is_image:
            raise invalid(
                f"input {self.name!r} takes {self.dtype} of shape {list(self.shape)}, not bytes."
            )

    def check_batch(self, shape: Sequence[int]) -> None:
        """Check that a shape is that of a batch of samples.

        Raises:
            ServingError: if it is not.
        """
        if not shape or tuple(shape[1:]) != self.shape:
            expected = ["samples", *self.shape]
            raise invalid(
                f"input {self.name!r} has the shape {list(shape)}; expected "
                f"[{', '.join(map(str, expected))}]."
            )

    def from_bytes(self, data: bytes) -> np.ndarray:
        """Return the flat array of some bytes.

        Raises:
            ServingError: if the bytes end within a value.
        """
        if len(data) % self.numpy_dtype.itemsize:
            raise invalid(
                f"input {self.name!r} has {len(data)} bytes; expected a multiple of "
                f"{self.numpy_dtype.itemsize}, the size of a {self.dtype}."
            )
        return np.frombuffer(data, self.numpy_dtype)

    def cast(self, values: np.ndarray) -> np.ndarray:
        """Convert numbers to the type of the input.

        Raises:
            ServingError: if it is an integer type that cannot hold all of them.
        """
        if self.numpy_dtype.kind in "iu" and values.size:
            limits = np.iinfo(self.numpy_dtype)
            if values.min() < limits.min or values.max() > limits.max:
                raise invalid(
                    f"input {self.name!r} has a number that {self.dtype} cannot hold: the values "
                    f"are from {values.min()} to {values.max()}; {self.dtype} has {limits.min} to "
                    f"{limits.max}."
                )
        with np.errstate(over="ignore"):
            return values.astype(self.numpy_dtype)

    def reshape(self, values: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return values in the shape that a request gives for them.

        Raises:
            ServingError: if the number of values does not match.
        """
        if values.size != prod(shape):
            raise invalid(
                f"input {self.name!r} has {values.size} values for the shape {list(shape)}; "
                f"expected {prod(shape)}."
            )
        return values.reshape(shape)


@dataclass(frozen=True)
class Signature:
    """All inputs and outputs of a model, in the order of its program's arguments and results."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Json) -> Signature:
        def spec(entry: Json) -> TensorSpec:
            name, dtype, shape = entry["name"], entry["dtype"], tuple(entry["shape"])
            sizes = [size for size in shape if type(size) is int and size >= 0]
            if not isinstance(name, str) or dtype not in TYPES or len(sizes) != len(shape):
                raise ValueError(f"{entry!r} is not an input or output.")
            return TensorSpec(name, dtype, shape)

        def specs(entries: Iterable[Json]) -> tuple[TensorSpec, ...]:
            return tuple(map(spec, entries))

        return cls(specs(value["inputs"]), specs(value["outputs"]))

    def input(self, name: str) -> TensorSpec:
        """Return the input of a name.

        Raises:
            ServingError: if the model has no such input.
        """
        for spec in self.inputs:
            if spec.name == name:
                return spec
        known = ", ".join(spec.name for spec in self.inputs)
        raise invalid(f"input {show(name)} is not one of the model's: {known}")

    def check(self, arrays: Arrays) -> int:
        """Check the inputs of a request, and return its number of samples.

        Raises:
            ServingError: if an input is missing or unknown, or has another shape or type.
        """
        names = {spec.name for spec in self.inputs}
        if set(arrays) != names:
            raise invalid(
                f"The request has the inputs {_listed(arrays)}, and the model {_listed(names)}."
            )
        counts = set()
        for spec in self.inputs:
            array = arrays[spec.name]
            spec.check_batch(array.shape)
            if array.dtype != spec.numpy_dtype:
                raise invalid(
                    f"input {spec.name!r} is of type {array.dtype}; expected {spec.dtype}."
                )
            counts.add(len(array))
        if len(counts) != 1 or not min(counts):
            raise invalid(
                f"The inputs have {_listed(counts)} samples; all need the same number, 1 or more."
            )
        return counts.pop()


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in sorted(values)) or "none"
