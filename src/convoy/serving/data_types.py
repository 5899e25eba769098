"""The types of inputs and outputs, and their names in each protocol."""

from __future__ import annotations

from typing import NamedTuple

from convoy.serving.tensorflow_serving_pb2 import DataType


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
