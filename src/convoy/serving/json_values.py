"""JSON values to arrays and back, as TensorFlow Serving's REST API has them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from convoy.serving.errors import invalid
from convoy.serving.images import decode_picture
from convoy.serving.signature import MOST_DIMENSIONS, Arrays, Signature, Tensor

BASE64 = "b64"


def parse(body: bytes) -> dict[str, Any]:
    """Read a request's body; `NaN`, `Infinity` and `-Infinity` are numbers.

    Raises:
        ServingError: if it is not a JSON object.
    """
    if not body.strip():
        raise invalid("JSON Parse error: The document is empty")
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        raise invalid(f"JSON Parse error: {error.msg} at offset: {error.pos}") from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise invalid(f"JSON Parse error: {_first_line(error)}") from None
    if not isinstance(value, dict):
        raise invalid(f"JSON Value: {_shown(value)} Is not object")
    return value


def row_inputs(instances: Any, signature: Signature) -> Arrays:
    """Read the row form: a list with an entry for each sample.

    Raises:
        ServingError: if that is not what it is.
    """
    if not isinstance(instances, list):
        raise invalid(f"JSON Value: {_shown(instances)} Excepting 'instances' to be an list/array")
    if not instances:
        raise invalid("JSON Value: [] No values in 'instances' array")
    named = _is_named(instances[0])
    if not named and len(signature.inputs) > 1:
        raise invalid(
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"
        )
    for position, entry in enumerate(instances):
        if _is_named(entry) != named:
            expected, got = ("object", "list") if named else ("value/list", "object")
            raise invalid(f"Expecting {expected} but got {got} at item {position} of input list")
    if not named:
        return {signature.inputs[0].name: to_array(instances, signature.inputs[0])}
    names = {tensor.name for tensor in signature.inputs}
    for position, entry in enumerate(instances):
        if set(entry) != names:
            raise invalid(
                f"Failed to process element: {position} of 'instances' list. JSON object: "
                f"{_shown(entry)} keys must be equal to: {','.join(sorted(names))}"
            )
    return {
        tensor.name: to_array([entry[tensor.name] for entry in instances], tensor)
        for tensor in signature.inputs
    }


def column_inputs(inputs: Any, signature: Signature) -> Arrays:
    """Read the column form: a batch for each input.

    Raises:
        ServingError: if that is not what it is.
    """
    if not _is_named(inputs):
        if len(signature.inputs) > 1:
            raise invalid(
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map"
            )
        return {signature.inputs[0].name: to_array(inputs, signature.inputs[0])}
    for tensor in signature.inputs:
        if tensor.name not in inputs:
            raise invalid(f"Missing named input: {tensor.name} in 'inputs' object.")
    return {name: to_array(value, signature.input(name)) for name, value in inputs.items()}


def example_inputs(examples: Any, context: Any, signature: Signature) -> Arrays:
    """Read examples: for each sample a flat list of values, or one, by input.

    Raises:
        ServingError: if that is not what they are.
    """
    if not isinstance(examples, list):
        raise invalid("Expecting 'examples' value to be an list/array")
    if not examples:
        raise invalid("'examples' value is an empty array")
    common = {} if context is None else context
    if not isinstance(common, dict) or not all(isinstance(entry, dict) for entry in examples):
        raise invalid("Example must be JSON object")
    rows: dict[str, list[np.ndarray]] = {tensor.name: [] for tensor in signature.inputs}
    for entry in examples:
        features = common | entry
        for tensor in signature.inputs:
            if tensor.name not in features:
                raise invalid(f"Missing feature: {tensor.name} in example.")
            rows[tensor.name].append(_feature(features[tensor.name], tensor))
    return {name: np.stack(values) for name, values in rows.items()}


def to_array(value: Any, tensor: Tensor) -> np.ndarray:
    """Return a JSON value as an array of a tensor's type.

    Raises:
        ServingError: if it cannot be one.
    """
    leaves, shape = _flatten(value, tensor)
    kinds = set(map(type, leaves))
    if kinds == {dict}:
        pixels = np.stack([_picture(leaf, tensor) for leaf in leaves])
        return pixels.reshape(*shape, *tensor.shape)
    if not kinds <= {int, float} and kinds != {bool}:
        wrong = next(leaf for leaf in leaves if type(leaf) not in (int, float))
        raise invalid(
            f"JSON Value: {_shown(wrong)} Type: {_TYPES.get(type(wrong), 'Number')} is not of "
            f"expected type: {tensor.dtype}"
        )
    dtype: Any = np.float64
    if kinds == {bool}:
        dtype = np.bool_
    elif kinds == {int} and tensor.numpy_dtype.kind in "iub":
        dtype = np.uint64 if tensor.dtype == "uint64" else np.int64
    try:
        array = np.array(leaves, dtype)
    except OverflowError:
        raise invalid(
            f"input {tensor.name!r} has a number that {tensor.dtype} cannot hold."
        ) from None
    return as_type(array.reshape(shape), tensor)


_TYPES = {str: "String", bool: "Bool", dict: "Object", type(None): "Null"}


def _flatten(value: Any, tensor: Tensor) -> tuple[list[Any], list[int]]:
    """Return the leaves of nested lists, and the size of every level."""
    leaves, shape = [value], list[int]()
    while list in (kinds := set(map(type, leaves))):
        sizes = set(map(len, leaves)) if kinds == {list} else set()
        if len(sizes) != 1:
            raise invalid(
                f"input {tensor.name!r} is not a list with the same size at every level: level "
                f"{len(shape) + 1} has the sizes {sorted(sizes) or 'of lists and of values'}."
            )
        shape.append(sizes.pop())
        if len(shape) > MOST_DIMENSIONS or not shape[-1]:
            raise invalid(f"input {tensor.name!r} has the shape {shape}.")
        leaves = list(chain.from_iterable(leaves))
    return leaves, shape


def as_type(array: np.ndarray, tensor: Tensor) -> np.ndarray:
    """Return an array in a tensor's type, if all values have a place there.

    Raises:
        ServingError: if not.
    """
    target = tensor.numpy_dtype
    kinds = {"b": "b", "i": "iu", "u": "iu"}.get(target.kind, "iuf")
    if array.ndim > MOST_DIMENSIONS or array.size == 0:
        raise invalid(f"input {tensor.name!r} has the shape {list(array.shape)}.")
    if array.dtype.kind not in kinds:
        raise invalid(f"input {tensor.name!r} is of type {array.dtype}; expected {tensor.dtype}.")
    if target.kind in "iu":
        limits = np.iinfo(target)
        if array.min() < limits.min or array.max() > limits.max:
            raise invalid(
                f"input {tensor.name!r} has values from {array.min()} to {array.max()}; "
                f"{tensor.dtype} has {limits.min} to {limits.max}."
            )
    with np.errstate(over="ignore"):
        converted = array.astype(target)
    if target.kind not in "iub" and array.dtype.kind == "f":
        lost = np.isinf(converted) & np.isfinite(array)
        if lost.any():
            raise invalid(
                f"Cannot convert JSON value: {array[lost][0]} to {tensor.dtype} without loss of "
                "precision."
            )
    return converted


def to_json(array: np.ndarray) -> Any:
    """Return an array as nested lists, with as few digits as its type needs."""
    if array.dtype.kind in "iub":
        return array.tolist()
    if array.dtype == np.float64:
        return array.tolist()
    if array.dtype not in (np.float32, np.float16):
        array = array.astype(np.float32)
    # By way of text: a float32 that prints as 0.2 is 0.20000000298 as a float64.
    return array.astype(str).astype(np.float64).tolist()


def row_outputs(outputs: Arrays) -> Any:
    if len(outputs) == 1:
        return to_json(next(iter(outputs.values())))
    columns = {name: to_json(value) for name, value in outputs.items()}
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def column_outputs(outputs: Arrays) -> Any:
    if len(outputs) == 1:
        return to_json(next(iter(outputs.values())))
    return {name: to_json(value) for name, value in outputs.items()}


def _is_named(value: Any) -> bool:
    """Say whether a value is an object by names of inputs, and not one of base64."""
    return isinstance(value, dict) and not (len(value) == 1 and isinstance(value.get(BASE64), str))


def _picture(value: Any, tensor: Tensor) -> np.ndarray:
    if not isinstance(value, dict) or _is_named(value):
        raise invalid(f"JSON Value: {_shown(value)} not formatted correctly for base64 data")
    try:
        data = base64.b64decode(value[BASE64], validate=True)
    except (binascii.Error, ValueError):
        raise invalid("Unable to base64 decode") from None
    return decode_picture(data, tensor)


def _feature(value: Any, tensor: Tensor) -> np.ndarray:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0]
    if isinstance(value, dict):
        return _picture(value, tensor)
    array = to_array(value if isinstance(value, list) else [value], tensor)
    if array.ndim != 1 or array.size != int(np.prod(tensor.shape)):
        raise invalid(
            f"Feature: {tensor.name} has {array.size} values; expected {int(np.prod(tensor.shape))}"
        )
    return array.reshape(tensor.shape)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str) if isinstance(value, Mapping | list) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
