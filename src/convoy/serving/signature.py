"""What a served model takes and returns: names, types and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from convoy.serving.errors import invalid

DEFAULT_SIGNATURE = "serving_default"
# Every model has one signature. Clients ask for it by these names, or by none.
KNOWN_SIGNATURES = (
    "",
    DEFAULT_SIGNATURE,
    "tensorflow/serving/predict",
    "tensorflow/serving/classify",
    "tensorflow/serving/regress",
)
Arrays = dict[str, np.ndarray]

# More dimensions are no image or batch of anything, but a way to make a parser work hard.
MOST_DIMENSIONS = 16


@dataclass(frozen=True)
class Tensor:
    """One input or output of a model, without the batch.

    Attributes:
        name: as requests call it.
        dtype: as NumPy calls it, or `bfloat16`.
        shape: of one sample.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numpy_dtype(self) -> np.dtype:
        return np.dtype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype)

    @property
    def is_image(self) -> bool:
        """Whether a picture's file can stand for a sample: pixels as bytes, grey or in colour."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[2] in (1, 3)

    def sample_bytes(self) -> int:
        return prod(self.shape) * self.numpy_dtype.itemsize


@dataclass(frozen=True)
class Signature:
    """All inputs and outputs of a model, in the order in which its program has them."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Signature:
        parts = {
            part: tuple(
                Tensor(entry["name"], entry["dtype"], tuple(entry["shape"]))
                for entry in value[part]
            )
            for part in ("inputs", "outputs")
        }
        return cls(**parts)

    def input(self, name: str) -> Tensor:
        """Return an input by its name.

        Raises:
            ServingError: if there is none.
        """
        for tensor in self.inputs:
            if tensor.name == name:
                return tensor
        known = ", ".join(tensor.name for tensor in self.inputs)
        raise invalid(f"input {name!r} is not one of the model's: {known}")

    def check(self, arrays: Arrays) -> int:
        """Return the number of samples in a request that has all inputs, as the model wants them.

        Raises:
            ServingError: if it has not.
        """
        names = {tensor.name for tensor in self.inputs}
        if set(arrays) != names:
            raise invalid(
                f"The request has the inputs {_listed(arrays)}, and the model {_listed(names)}."
            )
        counts = set()
        for tensor in self.inputs:
            array = arrays[tensor.name]
            if array.ndim == 0 or array.shape[1:] != tensor.shape:
                expected = ["samples", *tensor.shape]
                raise invalid(
                    f"input {tensor.name!r} has the shape {list(array.shape)}; expected "
                    f"[{', '.join(map(str, expected))}]."
                )
            if array.dtype != tensor.numpy_dtype:
                raise invalid(
                    f"input {tensor.name!r} is of type {array.dtype}; expected {tensor.dtype}."
                )
            counts.add(len(array))
        if len(counts) != 1 or not min(counts):
            raise invalid(f"The inputs have {_listed(counts)} samples; each needs the same, 1 up.")
        return counts.pop()


def check_signature_name(name: str) -> None:
    """Refuse a signature that a model does not have; all have one.

    Raises:
        ServingError: if the name is another.
    """
    if name not in KNOWN_SIGNATURES:
        raise invalid(f'Serving signature name: "{name}" not found in signature def')


def _listed(values: Any) -> str:
    return ", ".join(str(value) for value in sorted(values)) or "none"
