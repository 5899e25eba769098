"""Encoding and decoding of `tf.train.Example`: named lists of bytes, floats or integers."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from convoy.data.records import DamagedDataError
from convoy.data.tensorflow_pb2 import Example
from google.protobuf.message import DecodeError


def encode(features: Mapping[str, Sequence[Any]]) -> bytes:
    """Return the bytes of an example with a list of bytes, floats or integers for each name."""
    example = Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        if not values:
            continue  # An empty list has no kind, so that readers of every kind accept it.
        if isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(map(int, values))
    return example.SerializeToString(deterministic=True)


def decode(data: bytes, wanted: Container[str]) -> dict[str, list[Any]]:
    """Return the lists of an example whose names are wanted.

    Raises:
        DamagedDataError: if the bytes are not an example.
    """
    try:
        features = Example.FromString(data).features.feature
    except DecodeError as error:
        raise DamagedDataError(f"it is not a tf.train.Example: {error}") from None
    found: dict[str, list[Any]] = {}
    for name, feature in features.items():
        if name in wanted:
            kind = feature.WhichOneof("kind")
            found[name] = [] if kind is None else list(getattr(feature, kind).value)
    return found
