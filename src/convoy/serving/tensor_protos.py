"""Conversion between arrays and the `TensorProto` and `Example` messages of gRPC requests."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from convoy.data.tensorflow_pb2 import Feature
from convoy.serving import admission
from convoy.serving.errors import invalid, show
from convoy.serving.gil import let_others_run
from convoy.serving.images import decode_images
from convoy.serving.signature import (
    MAX_DIMENSIONS,
    NUMPY_NAMES,
    TYPES,
    Arrays,
    Signature,
    TensorSpec,
)
from convoy.serving.tensorflow_methods import FeatureReader, example_inputs
from convoy.serving.tensorflow_serving_pb2 import DataType, Input, TensorProto

# Values of a list that are converted at once; other threads run in between.
_CHUNK_VALUES = 1 << 12


def to_array(proto: TensorProto, spec: TensorSpec, max_samples: int) -> np.ndarray:
    """Return the array of a message; strings are image files.

    Args:
        proto: the message.
        spec: the input that it is for.
        max_samples: maximum number of samples.

    Raises:
        ServingError: if the type is not the input's, or the values do not fill the shape.
    """
    shape = _shape(proto, spec)
    if proto.dtype == DataType.DT_STRING:
        return decode_images(proto.string_val, shape, spec, max_samples)
    if NUMPY_NAMES.get(proto.dtype) != spec.dtype:
        found = NUMPY_NAMES.get(proto.dtype, f"number {proto.dtype}")
        raise invalid(f"input {spec.name!r} is of type {found}; expected {spec.dtype}.")
    # A message with one value can claim any shape.
    admission.check_shape(spec, shape, max_samples)
    admission.reserve(prod(shape) * spec.numpy_dtype.itemsize)
    values = _values(proto, spec)
    if values.size == 1:
        return np.broadcast_to(values[0], shape)
    return spec.reshape(values, shape)


def _shape(proto: TensorProto, spec: TensorSpec) -> tuple[int, ...]:
    sizes = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or len(sizes) > MAX_DIMENSIONS or min(sizes, default=1) < 1:
        raise invalid(f"input {spec.name!r}: {show(list(sizes))} is not the shape of a batch.")
    return sizes


def _values(proto: TensorProto, spec: TensorSpec) -> np.ndarray:
    if proto.tensor_content:
        return spec.from_bytes(proto.tensor_content)
    listed = getattr(proto, TYPES[spec.dtype].value_field)
    chunks = []
    for start in range(0, max(1, len(listed)), _CHUNK_VALUES):
        chunks.append(_convert(listed[start : start + _CHUNK_VALUES], spec))
        let_others_run()
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


def _convert(listed: Sequence[float], spec: TensorSpec) -> np.ndarray:
    """Return values of a message's list in the type of an input."""
    if spec.dtype in ("float16", "bfloat16"):
        return (np.array(listed, np.int64) & 0xFFFF).astype(np.uint16).view(spec.numpy_dtype)
    if spec.numpy_dtype.kind not in "iu":
        return np.array(listed, spec.numpy_dtype)
    return spec.cast(np.array(listed, np.uint64 if spec.dtype == "uint64" else np.int64))


def to_proto(array: np.ndarray, *, packed: bool) -> TensorProto:
    """Return the message of an array.

    Args:
        array: the array.
        packed: whether the values are sent as bytes; otherwise, floats are sent as a list.
    """
    proto = TensorProto(dtype=TYPES[array.dtype.name].tensorflow)
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if array.dtype == np.float32 and not packed:
        values = array.reshape(-1)
        for start in range(0, values.size, _CHUNK_VALUES):
            proto.float_val.extend(values[start : start + _CHUNK_VALUES].tolist())
            let_others_run()
    else:
        proto.tensor_content = np.ascontiguousarray(array).tobytes()
    return proto


def from_examples(source: Input, signature: Signature, max_samples: int) -> Arrays:
    """Return the inputs in a request's `Example` messages.

    Args:
        source: the messages.
        signature: the model's inputs.
        max_samples: maximum number of examples.

    Raises:
        ServingError: if they do not fit the model's inputs.
    """
    context: Mapping[str, Feature] = {}
    if source.HasField("example_list_with_context"):
        examples = source.example_list_with_context.examples
        context = source.example_list_with_context.context.features.feature
    else:
        examples = source.example_list.examples
    if not examples:
        raise invalid("Input is empty.")
    admission.check_samples(len(examples), max_samples)
    features = [example.features.feature for example in examples]
    return example_inputs(features, context, signature, _READER, max_samples)


def _is_file(feature: Feature) -> bool:
    return feature.HasField("bytes_list")


def _file_bytes(feature: Feature, spec: TensorSpec) -> int:
    files = feature.bytes_list.value
    if len(files) != 1:
        raise invalid(f"Feature: {spec.name} has {len(files)} values; expected 1")
    return len(files[0])


def _file(feature: Feature) -> bytes:
    return feature.bytes_list.value[0]


def _numbers(feature: Feature, spec: TensorSpec) -> np.ndarray:
    kind = "float_list" if feature.HasField("float_list") else "int64_list"
    listed: Sequence[float] = getattr(feature, kind).value
    is_integer = spec.numpy_dtype.kind in "iub"
    # Numbers of a list that is too long would take several times its size in the message.
    if len(listed) != spec.values or (is_integer and kind == "float_list"):
        raise invalid(
            f"Feature: {spec.name} has {len(listed)} values in its {kind}; expected "
            f"{spec.values} of type {spec.dtype}"
        )
    dtype = np.float64 if kind == "float_list" else np.int64
    values = np.empty(len(listed), spec.numpy_dtype)
    for start in range(0, len(listed), _CHUNK_VALUES):
        part = slice(start, start + _CHUNK_VALUES)
        values[part] = spec.cast(np.array(listed[part], dtype))
        let_others_run()
    return values.reshape(spec.shape)


_READER = FeatureReader(_is_file, _file_bytes, _file, _numbers)
