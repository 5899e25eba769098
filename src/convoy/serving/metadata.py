"""What a server tells about its models, in TensorFlow Serving's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convoy.serving.signature import DEFAULT_SIGNATURE, Tensor
from convoy.serving.versions import LoadedVersion, VersionStatus

PREDICT_METHOD = "tensorflow/serving/predict"

# TensorFlow's number for each type.
DATA_TYPES = {
    "float32": ("DT_FLOAT", 1),
    "float64": ("DT_DOUBLE", 2),
    "int32": ("DT_INT32", 3),
    "uint8": ("DT_UINT8", 4),
    "int16": ("DT_INT16", 5),
    "int8": ("DT_INT8", 6),
    "int64": ("DT_INT64", 9),
    "bool": ("DT_BOOL", 10),
    "bfloat16": ("DT_BFLOAT16", 14),
    "uint16": ("DT_UINT16", 17),
    "float16": ("DT_HALF", 19),
    "uint32": ("DT_UINT32", 22),
    "uint64": ("DT_UINT64", 23),
}


def status_json(statuses: Sequence[VersionStatus]) -> dict[str, Any]:
    """Return the JSON of a `GetModelStatusResponse`."""
    return {
        "model_version_status": [
            {
                "version": str(status.version),
                "state": status.state.name,
                "status": {"error_code": status.code.name, "error_message": status.message},
            }
            for status in statuses
        ]
    }


def metadata_json(model: str, loaded: LoadedVersion) -> dict[str, Any]:
    """Return the JSON of a `GetModelMetadataResponse`."""
    signature = loaded.servable.signature
    definition = {
        "inputs": {tensor.name: _tensor_json(tensor) for tensor in signature.inputs},
        "outputs": {tensor.name: _tensor_json(tensor) for tensor in signature.outputs},
        "method_name": PREDICT_METHOD,
    }
    return {
        "model_spec": {"name": model, "signature_name": "", "version": str(loaded.version)},
        "metadata": {"signature_def": {"signature_def": {DEFAULT_SIGNATURE: definition}}},
    }


def _tensor_json(tensor: Tensor) -> dict[str, Any]:
    sizes = (-1, *tensor.shape)
    return {
        "dtype": DATA_TYPES[tensor.dtype][0],
        "tensor_shape": {
            "dim": [{"size": str(size), "name": ""} for size in sizes],
            "unknown_rank": False,
        },
        "name": f"{tensor.name}:0",
    }
