"""Names, types and shapes of a served model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np
from convoy.serving.errors import invalid

Arrays = dict[str, np.ndarray]

# No model takes more, and a parser's work grows with them.
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


@dataclass(frozen=True)
class Signature:
    """All inputs and outputs of a model, in the order of its program's arguments and results."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Signature:
        parts = {
            part: tuple(
                TensorSpec(entry["name"], entry["dtype"], tuple(entry["shape"]))
                for entry in value[part]
            )
            for part in ("inputs", "outputs")
        }
        return cls(**parts)

    def input(self, name: str) -> TensorSpec:
        """Return the input of a name.

        Raises:
            ServingError: if the model has no such input.
        """
        for spec in self.inputs:
            if spec.name == name:
                return spec
        known = ", ".join(spec.name for spec in self.inputs)
        raise invalid(f"input {name!r} is not one of the model's: {known}")

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
            if array.ndim == 0 or array.shape[1:] != spec.shape:
                expected = ["samples", *spec.shape]
                raise invalid(
                    f"input {spec.name!r} has the shape {list(array.shape)}; expected "
                    f"[{', '.join(map(str, expected))}]."
                )
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
