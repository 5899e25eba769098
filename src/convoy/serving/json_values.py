"""Conversion between arrays and the JSON of TensorFlow Serving's REST API."""

import base64
import io
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from convoy.error_messages import first_line
from convoy.serving import admission, json_text
from convoy.serving.errors import invalid, shorten, show
from convoy.serving.gil import let_others_run
from convoy.serving.images import decode_images
from convoy.serving.signature import MAX_DIMENSIONS, Arrays, Signature, TensorSpec
from convoy.serving.tensorflow_methods import FeatureReader, example_inputs

BASE64 = "b64"
# Longer texts are decoded in the thread for expensive requests.
EXPENSIVE_JSON_BYTES = 1 << 20
# Values of an array that are read at once, and values that are written at once. Other threads run
# in between.
_CHUNK_VALUES = 1 << 11
_WRITTEN_VALUES = 1 << 8
# Longer texts are parsed in steps.
_LONG_BYTES = 1 << 16
# Characters in base64 that are decoded at once, a multiple of four.
_BASE64_CHARACTERS = 1 << 16
_TYPE_NAMES = {str: "String", bool: "Bool", dict: "Object", type(None): "Null"}

Json = Any
"""A value that `json.loads` returns or `json.dumps` takes."""


def parse(body: bytes, signature: Signature, max_samples: int) -> dict[str, Json]:
    """Parse the body of a request; `NaN`, `Infinity` and `-Infinity` are numbers.

    Args:
        body: the text.
        signature: the inputs of the model that the request is for.
        max_samples: maximum number of samples.

    Raises:
        ServingError: if it is not a JSON object, or has too many values.
    """
    size = admission.check_json(body, signature, max_samples)
    admission.reserve(size)
    if len(body) <= _LONG_BYTES and not body.strip():
        raise invalid("JSON Parse error: The document is empty")
    try:
        value = json_text.loads(body.decode()) if len(body) > _LONG_BYTES else json.loads(body)
    except json.JSONDecodeError as error:
        raise invalid(f"JSON Parse error: {error.msg} at offset: {error.pos}") from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise invalid(f"JSON Parse error: {first_line(error)}") from None
    if not isinstance(value, dict):
        raise invalid(f"JSON Value: {_shown(value)} Is not object")
    return value


def row_inputs(instances: Json, signature: Signature, max_samples: int) -> Arrays:
    """Return the inputs of the row format: a list with an entry for each sample.

    Args:
        instances: the list.
        signature: the model's inputs.
        max_samples: maximum number of samples.

    Raises:
        ServingError: if the value does not have this format.
    """
    if not isinstance(instances, list):
        raise invalid(f"JSON Value: {_shown(instances)} Excepting 'instances' to be an list/array")
    if not instances:
        raise invalid("JSON Value: [] No values in 'instances' array")
    admission.check_samples(len(instances), max_samples)
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
        return {signature.inputs[0].name: to_array(instances, signature.inputs[0], max_samples)}
    names = {spec.name for spec in signature.inputs}
    for position, entry in enumerate(instances):
        if set(entry) != names:
            raise invalid(
                f"Failed to process element: {position} of 'instances' list. JSON object: "
                f"{_shown(entry)} keys must be equal to: {','.join(sorted(names))}"
            )
    return {
        spec.name: to_array([entry[spec.name] for entry in instances], spec, max_samples)
        for spec in signature.inputs
    }


def column_inputs(inputs: Json, signature: Signature, max_samples: int) -> Arrays:
    """Return the inputs of the column format: a batch for each input.

    Args:
        inputs: the batch, or an object with a batch for each input.
        signature: the model's inputs.
        max_samples: maximum number of samples.

    Raises:
        ServingError: if the value does not have this format.
    """
    if not _is_named(inputs):
        if len(signature.inputs) > 1:
            raise invalid(
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map"
            )
        return {signature.inputs[0].name: to_array(inputs, signature.inputs[0], max_samples)}
    for spec in signature.inputs:
        if spec.name not in inputs:
            raise invalid(f"Missing named input: {spec.name} in 'inputs' object.")
    return {
        name: to_array(value, signature.input(name), max_samples) for name, value in inputs.items()
    }


def from_examples(examples: Json, context: Json, signature: Signature, max_samples: int) -> Arrays:
    """Return the inputs of examples: for each sample, the values of each input as a flat list.

    Args:
        examples: the list of examples.
        context: features that belong to every example, if not `None`.
        signature: the model's inputs.
        max_samples: maximum number of examples.

    Raises:
        ServingError: if they do not fit the model's inputs.
    """
    if not isinstance(examples, list):
        raise invalid("Expecting 'examples' value to be an list/array")
    if not examples:
        raise invalid("'examples' value is an empty array")
    common = {} if context is None else context
    if not isinstance(common, dict) or not all(isinstance(entry, dict) for entry in examples):
        raise invalid("Example must be JSON object")
    admission.check_samples(len(examples), max_samples)
    return example_inputs(examples, common, signature, _READER, max_samples)


def to_array(value: Json, spec: TensorSpec, max_samples: int) -> np.ndarray:
    """Return a JSON value as an array of an input's type.

    Args:
        value: numbers in nested lists, or image files as base64.
        spec: the input.
        max_samples: maximum number of image files.

    Raises:
        ServingError: if the value cannot be converted.
    """
    rows, shape, kinds = _flatten(value, spec)
    try:
        if kinds == {dict}:
            texts = [_base64_text(leaf) for row in rows for leaf in row]
            return _pixels(texts, spec, max_samples).reshape(*shape, *spec.shape)
        return _as_type(_numbers(rows, kinds, spec).reshape(shape), spec)
    finally:
        json_text.empty(rows)


def _pixels(texts: Sequence[str], spec: TensorSpec, max_samples: int) -> np.ndarray:
    """Return the pixels of image files in base64."""
    admission.check_samples(len(texts), max_samples)
    spec.check_takes_images()
    with admission.attempt():
        admission.reserve(sum(map(_decoded_bytes, texts)))
        files = [decode_base64(text) for text in texts]
        return decode_images(files, [len(files)], spec, max_samples)


def _numbers(rows: list[list[Json]], kinds: set[type], spec: TensorSpec) -> np.ndarray:
    """Return numbers of some Python types as a flat array."""
    if not kinds <= {int, float} and kinds != {bool}:
        wrong = next(leaf for row in rows for leaf in row if type(leaf) not in (int, float))
        raise invalid(
            f"JSON Value: {_shown(wrong)} Type: {_TYPE_NAMES.get(type(wrong), 'Number')} is not of "
            f"expected type: {spec.dtype}"
        )
    dtype: type[np.generic] = np.float64
    if kinds == {bool}:
        dtype = np.bool_
    elif kinds == {int} and spec.numpy_dtype.kind in "iub":
        dtype = np.uint64 if spec.dtype == "uint64" else np.int64
    array, start = np.empty(len(rows) * len(rows[0]), dtype), 0
    try:
        for values in _steps(rows):
            array[start : start + len(values)] = np.array(values, dtype)
            start += len(values)
    except OverflowError:
        raise invalid(f"input {spec.name!r} has a number that {spec.dtype} cannot hold.") from None
    return array


def _flatten(value: Json, spec: TensorSpec) -> tuple[list[list[Json]], list[int], set[type]]:
    """Return the innermost lists, the length of the lists at each level, and the types in them."""
    rows, shape = [[value]], list[int]()
    while list in (kinds := {kind for values in _steps(rows) for kind in set(map(type, values))}):
        sizes = set[int]()
        if kinds == {list}:
            sizes = {size for values in _steps(rows) for size in set(map(len, values))}
        if len(sizes) != 1:
            raise invalid(
                f"input {spec.name!r} is not a list with the same size at every level: level "
                f"{len(shape) + 1} has {_described_sizes(sizes)}."
            )
        shape.append(sizes.pop())
        if len(shape) > MAX_DIMENSIONS or not shape[-1]:
            raise invalid(
                f"input {spec.name!r} has the shape {shape}; expected at most {MAX_DIMENSIONS} "
                "dimensions, none of them empty."
            )
        outer, rows = rows, [row for values in _steps(rows) for row in values]
        json_text.empty(outer)
    return rows, shape, kinds


def _described_sizes(sizes: set[int]) -> str:
    if not sizes:
        return "lists and values"
    return f"lists of {min(sizes)} to {max(sizes)} entries"


def _steps(rows: list[list[Json]]) -> Iterator[list[Json]]:
    """Yield the values of rows of one length, some at a time; other threads run in between."""
    size = len(rows[0])
    if size > _CHUNK_VALUES:
        for row in rows:
            for start in range(0, size, _CHUNK_VALUES):
                yield row[start : start + _CHUNK_VALUES]
                let_others_run()
        return
    count = _CHUNK_VALUES // size
    for start in range(0, len(rows), count):
        yield list(chain.from_iterable(rows[start : start + count]))
        let_others_run()


def _as_type(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Convert an array to an input's type.

    Raises:
        ServingError: if the type cannot hold all values.
    """
    kinds = {"b": "b", "i": "iu", "u": "iu"}.get(spec.numpy_dtype.kind, "iuf")
    if array.dtype.kind not in kinds:
        raise invalid(f"input {spec.name!r} is of type {array.dtype}; expected {spec.dtype}.")
    converted = spec.cast(array)
    if array.dtype.kind == "f":
        lost = np.isinf(converted) & np.isfinite(array)
        if lost.any():
            raise invalid(
                f"Cannot convert JSON value: {array[lost][0]} to {spec.dtype} without loss of "
                "precision."
            )
    return converted


def to_json(array: np.ndarray) -> Json:
    """Return an array as nested lists, with as few digits as its type needs."""
    if array.dtype.kind in "iub" or array.dtype == np.float64:
        return _to_list(array)
    if array.dtype not in (np.float32, np.float16):
        array = array.astype(np.float32)
    # Converted through strings, because the float32 that prints as 0.2 is 0.20000000298 as a
    # float64.
    flat, numbers = array.reshape(-1), np.empty(array.size, np.float64)
    for start in range(0, array.size, _WRITTEN_VALUES):
        part = slice(start, start + _WRITTEN_VALUES)
        numbers[part] = flat[part].astype(str).astype(np.float64)
        let_others_run()
    return _to_list(numbers.reshape(array.shape))


def _to_list(array: np.ndarray) -> Json:
    """Return an array as nested lists; other threads run in between."""
    if array.size <= _CHUNK_VALUES:
        return array.tolist()
    if array[0].size > _CHUNK_VALUES:
        return [_to_list(row) for row in array]
    values, rows = list[Json](), _CHUNK_VALUES // array[0].size
    for start in range(0, len(array), rows):
        values += array[start : start + rows].tolist()
        let_others_run()
    return values


def output_bytes(outputs: Arrays) -> int:
    """Return the size of outputs, for the choice of a thread that writes them."""
    return sum(value.nbytes for value in outputs.values())


def column_outputs(outputs: Arrays) -> Json:
    """Return an object with the batch of each output, or the batch of the only output."""
    columns = {name: to_json(value) for name, value in outputs.items()}
    return columns if len(columns) > 1 else next(iter(columns.values()))


def row_outputs(outputs: Arrays) -> Json:
    """Return a list with an entry for each sample."""
    columns = column_outputs(outputs)
    if len(outputs) == 1:
        return columns
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _is_named(value: Json) -> bool:
    """Return whether a value is an object of named inputs, not of base64 data."""
    return isinstance(value, dict) and not (len(value) == 1 and isinstance(value.get(BASE64), str))


def decode_base64(text: str) -> bytes:
    """Return the bytes of a text.

    Raises:
        ServingError: if it is not base64.
    """
    # Its value is not a second copy of the bytes.
    decoded, is_padded = io.BytesIO(), False
    try:
        for start in range(0, len(text), _BASE64_CHARACTERS):
            if is_padded:
                raise ValueError("There is data after the padding.")
            part = text[start : start + _BASE64_CHARACTERS]
            decoded.write(base64.b64decode(part, validate=True))
            is_padded = part.endswith("=")
            let_others_run()
    except ValueError:
        raise invalid("Unable to base64 decode") from None
    return decoded.getvalue()


def _decoded_bytes(text: str) -> int:
    """Return the maximum number of bytes in a text in base64."""
    return 3 * len(text) // 4


def _base64_text(value: Json) -> str:
    if not isinstance(value, dict) or _is_named(value):
        raise invalid(f"JSON Value: {_shown(value)} not formatted correctly for base64 data")
    text: str = value[BASE64]
    return text


def _only(value: Json) -> Json:
    """Return the entry of a list with one entry, or another value itself."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _is_file(value: Json) -> bool:
    entry = _only(value)
    if isinstance(entry, dict):
        # Other objects have their own error.
        _base64_text(entry)
    return isinstance(entry, dict)


def _file_bytes(value: Json, _: TensorSpec) -> int:
    return _decoded_bytes(_base64_text(_only(value)))


def _file(value: Json) -> bytes:
    return decode_base64(_base64_text(_only(value)))


def _feature_numbers(value: Json, spec: TensorSpec) -> np.ndarray:
    array = to_array(value if isinstance(value, list) else [value], spec, max_samples=1)
    if array.ndim != 1 or array.size != spec.values:
        raise invalid(f"Feature: {spec.name} has {array.size} values; expected {spec.values}")
    return array.reshape(spec.shape)


_READER = FeatureReader(_is_file, _file_bytes, _file, _feature_numbers)


def _shown(value: Json) -> str:
    """Return the beginning of a value as TensorFlow Serving shows it, without quotes."""
    return show(value) if isinstance(value, dict | list) else shorten(str(value))
