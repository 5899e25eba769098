"""TensorFlow's `TensorProto` and `Example` to arrays and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from convoy.serving.errors import invalid
from convoy.serving.images import decode_picture
from convoy.serving.metadata import DATA_TYPES
from convoy.serving.protocol import message
from convoy.serving.signature import MOST_DIMENSIONS, Arrays, Signature, Tensor

TensorProto = message("tensorflow.TensorProto")
DT_STRING = 7

# The field in which values of a type are listed, where they are not packed into bytes.
_LISTS = {
    "float32": "float_val",
    "float64": "double_val",
    "int32": "int_val",
    "uint8": "int_val",
    "int16": "int_val",
    "int8": "int_val",
    "uint16": "int_val",
    "int64": "int64_val",
    "bool": "bool_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "float16": "half_val",
    "bfloat16": "half_val",
}
_NAMES = {number: name for name, (_, number) in DATA_TYPES.items()}


def to_array(proto: Any, tensor: Tensor) -> np.ndarray:
    """Return the array in a message; texts are files of pictures.

    Raises:
        ServingError: if it is not of the input's type, or its values do not fill its shape.
    """
    shape = _shape(proto, tensor)
    if proto.dtype == DT_STRING:
        files = list(proto.string_val)
        if not files or len(files) != _elements(shape):
            raise invalid(f"input {tensor.name!r}: {len(files)} strings for {list(shape)}.")
        return np.stack([decode_picture(file, tensor) for file in files])
    if _NAMES.get(proto.dtype) != tensor.dtype:
        found = _NAMES.get(proto.dtype, f"number {proto.dtype}")
        raise invalid(f"input {tensor.name!r} is of type {found}; expected {tensor.dtype}.")
    values = _values(proto, tensor)
    elements = _elements(shape)
    if values.size == 1 and elements > 1:
        _check_size(elements, tensor)
        values = np.broadcast_to(values, elements)
    if values.size != elements:
        raise invalid(
            f"input {tensor.name!r} has {values.size} values for the shape {list(shape)}."
        )
    return values.reshape(shape)


def _values(proto: Any, tensor: Tensor) -> np.ndarray:
    dtype = tensor.numpy_dtype
    if proto.tensor_content:
        if len(proto.tensor_content) % dtype.itemsize:
            raise invalid(f"input {tensor.name!r}: its content is not whole values.")
        return np.frombuffer(proto.tensor_content, dtype)
    listed = getattr(proto, _LISTS[tensor.dtype])
    if tensor.dtype in ("float16", "bfloat16"):
        return (np.array(listed, np.int64) & 0xFFFF).astype(np.uint16).view(dtype)
    if dtype.kind not in "iu":
        return np.array(listed, dtype)
    values = np.array(listed, np.uint64 if dtype == np.uint64 else np.int64)
    limits = np.iinfo(dtype)
    if values.size and (values.min() < limits.min or values.max() > limits.max):
        raise invalid(f"input {tensor.name!r} has a number that {tensor.dtype} cannot hold.")
    return values.astype(dtype)


def _shape(proto: Any, tensor: Tensor) -> tuple[int, ...]:
    sizes = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or len(sizes) > MOST_DIMENSIONS or min(sizes, default=1) < 1:
        raise invalid(f"input {tensor.name!r}: the shape {list(sizes)} is not one of samples.")
    return sizes


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _check_size(elements: int, tensor: Tensor) -> None:
    """Refuse a single value that would be repeated into gigabytes."""
    if elements > 1 << 28:
        raise invalid(f"input {tensor.name!r}: one value cannot fill {elements} places.")


def to_proto(array: np.ndarray) -> Any:
    proto = TensorProto(dtype=DATA_TYPES[array.dtype.name][1])
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    # Clients read lists of floats as often as bytes, and TensorFlow Serving sends lists.
    if array.dtype == np.float32:
        proto.float_val.extend(array.reshape(-1).tolist())
    else:
        proto.tensor_content = np.ascontiguousarray(array).tobytes()
    return proto


def of_input(source: Any, signature: Signature) -> Arrays:
    """Return the inputs that are in a list of `Example` messages.

    Raises:
        ServingError: if they are not what the model takes.
    """
    common: dict[str, Any] = {}
    if source.HasField("example_list_with_context"):
        examples = source.example_list_with_context.examples
        common = dict(source.example_list_with_context.context.features.feature)
    else:
        examples = source.example_list.examples
    if not examples:
        raise invalid("Input is empty.")
    rows: dict[str, list[np.ndarray]] = {tensor.name: [] for tensor in signature.inputs}
    for example in examples:
        features = common | dict(example.features.feature)
        for tensor in signature.inputs:
            if tensor.name not in features:
                raise invalid(f"Missing feature: {tensor.name} in example.")
            rows[tensor.name].append(_feature(features[tensor.name], tensor))
    return {name: np.stack(values) for name, values in rows.items()}


def _feature(feature: Any, tensor: Tensor) -> np.ndarray:
    if feature.HasField("bytes_list"):
        files = feature.bytes_list.value
        if len(files) != 1:
            raise invalid(f"Feature: {tensor.name} has {len(files)} values; expected 1")
        return decode_picture(files[0], tensor)
    kind = "float_list" if feature.HasField("float_list") else "int64_list"
    values = np.array(getattr(feature, kind).value)
    is_whole = tensor.numpy_dtype.kind in "iub"
    if values.size != _elements(tensor.shape) or (is_whole and kind == "float_list"):
        raise invalid(
            f"Feature: {tensor.name} has {values.size} values in its {kind}; expected "
            f"{_elements(tensor.shape)} of type {tensor.dtype}"
        )
    if is_whole and tensor.numpy_dtype.kind != "b":
        limits = np.iinfo(tensor.numpy_dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise invalid(f"Feature: {tensor.name} has values that {tensor.dtype} cannot hold")
    return values.astype(tensor.numpy_dtype).reshape(tensor.shape)
