"""The messages of TensorFlow Serving's gRPC API: names, numbers and types of fields.

They live in a pool of their own, so that TensorFlow's stubs may be in the same process. Only what
is read or written here is described; protobuf skips fields that it does not know.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2

FILE = "convoy/serving/tensorflow_serving.proto"
CORE = "tensorflow"
SERVING = "tensorflow.serving"
# Under which an error brings the names of all models, as a list in JSON.
MODELS_KEY = "convoy-models"

# A line is a field: number, name, type; `*` repeats it, and `{T}` maps texts to T.
_MESSAGES = {
    "tensorflow.TensorShapeDim": "1 size int64, 2 name string",
    "tensorflow.TensorShapeProto": "2 dim tensorflow.TensorShapeDim*, 3 unknown_rank bool",
    "tensorflow.TensorProto": (
        "1 dtype int32, 2 tensor_shape tensorflow.TensorShapeProto, 3 version_number int32, "
        "4 tensor_content bytes, 5 float_val float*, 6 double_val double*, 7 int_val int32*, "
        "8 string_val bytes*, 10 int64_val int64*, 11 bool_val bool*, 13 half_val int32*, "
        "16 uint32_val uint32*, 17 uint64_val uint64*"
    ),
    "tensorflow.BytesList": "1 value bytes*",
    "tensorflow.FloatList": "1 value float*",
    "tensorflow.Int64List": "1 value int64*",
    "tensorflow.Feature": (
        "1 bytes_list tensorflow.BytesList, 2 float_list tensorflow.FloatList, "
        "3 int64_list tensorflow.Int64List"
    ),
    "tensorflow.Features": "1 feature {tensorflow.Feature}",
    "tensorflow.Example": "1 features tensorflow.Features",
    "tensorflow.TensorInfo": (
        "1 name string, 2 dtype int32, 3 tensor_shape tensorflow.TensorShapeProto"
    ),
    "tensorflow.SignatureDef": (
        "1 inputs {tensorflow.TensorInfo}, 2 outputs {tensorflow.TensorInfo}, 3 method_name string"
    ),
    "tensorflow.serving.ModelSpec": (
        "1 name string, 2 version google.protobuf.Int64Value, 3 signature_name string, "
        "4 version_label string"
    ),
    "tensorflow.serving.PredictRequest": (
        "1 model_spec tensorflow.serving.ModelSpec, 2 inputs {tensorflow.TensorProto}, "
        "3 output_filter string*"
    ),
    "tensorflow.serving.PredictResponse": (
        "1 outputs {tensorflow.TensorProto}, 2 model_spec tensorflow.serving.ModelSpec"
    ),
    "tensorflow.serving.ExampleList": "1 examples tensorflow.Example*",
    "tensorflow.serving.ExampleListWithContext": (
        "1 examples tensorflow.Example*, 2 context tensorflow.Example"
    ),
    "tensorflow.serving.Input": (
        "1 example_list tensorflow.serving.ExampleList, "
        "2 example_list_with_context tensorflow.serving.ExampleListWithContext"
    ),
    "tensorflow.serving.Class": "1 label string, 2 score float",
    "tensorflow.serving.Classifications": "1 classes tensorflow.serving.Class*",
    "tensorflow.serving.ClassificationResult": (
        "1 classifications tensorflow.serving.Classifications*"
    ),
    "tensorflow.serving.ClassificationRequest": (
        "1 model_spec tensorflow.serving.ModelSpec, 2 input tensorflow.serving.Input"
    ),
    "tensorflow.serving.ClassificationResponse": (
        "1 result tensorflow.serving.ClassificationResult, "
        "2 model_spec tensorflow.serving.ModelSpec"
    ),
    "tensorflow.serving.Regression": "1 value float",
    "tensorflow.serving.RegressionResult": "1 regressions tensorflow.serving.Regression*",
    "tensorflow.serving.RegressionRequest": (
        "1 model_spec tensorflow.serving.ModelSpec, 2 input tensorflow.serving.Input"
    ),
    "tensorflow.serving.RegressionResponse": (
        "1 result tensorflow.serving.RegressionResult, 2 model_spec tensorflow.serving.ModelSpec"
    ),
    "tensorflow.serving.InferenceTask": (
        "1 model_spec tensorflow.serving.ModelSpec, 2 method_name string"
    ),
    "tensorflow.serving.MultiInferenceRequest": (
        "1 tasks tensorflow.serving.InferenceTask*, 2 input tensorflow.serving.Input"
    ),
    "tensorflow.serving.InferenceResult": (
        "1 model_spec tensorflow.serving.ModelSpec, "
        "2 classification_result tensorflow.serving.ClassificationResult, "
        "3 regression_result tensorflow.serving.RegressionResult"
    ),
    "tensorflow.serving.MultiInferenceResponse": "1 results tensorflow.serving.InferenceResult*",
    "tensorflow.serving.SignatureDefMap": "1 signature_def {tensorflow.SignatureDef}",
    "tensorflow.serving.GetModelMetadataRequest": (
        "1 model_spec tensorflow.serving.ModelSpec, 2 metadata_field string*"
    ),
    "tensorflow.serving.GetModelMetadataResponse": (
        "1 model_spec tensorflow.serving.ModelSpec, 2 metadata {google.protobuf.Any}"
    ),
    "tensorflow.serving.StatusProto": "1 error_code int32, 2 error_message string",
    "tensorflow.serving.GetModelStatusRequest": "1 model_spec tensorflow.serving.ModelSpec",
    "tensorflow.serving.ModelVersionStatus": (
        "1 version int64, 2 state int32, 3 status tensorflow.serving.StatusProto"
    ),
    "tensorflow.serving.GetModelStatusResponse": (
        "1 model_version_status tensorflow.serving.ModelVersionStatus*"
    ),
    "tensorflow.serving.LatestVersions": "1 num_versions uint32",
    "tensorflow.serving.AllVersions": "",
    "tensorflow.serving.SpecificVersions": "1 versions int64*",
    "tensorflow.serving.VersionPolicy": (
        "100 latest tensorflow.serving.LatestVersions, 101 all tensorflow.serving.AllVersions, "
        "102 specific tensorflow.serving.SpecificVersions"
    ),
    "tensorflow.serving.LabelEntry": "1 key string, 2 value int64",
    "tensorflow.serving.ModelConfig": (
        "1 name string, 2 base_path string, 4 model_platform string, "
        "7 model_version_policy tensorflow.serving.VersionPolicy, "
        "8 version_labels tensorflow.serving.LabelEntry*"
    ),
    "tensorflow.serving.ModelConfigList": "1 config tensorflow.serving.ModelConfig*",
    "tensorflow.serving.ModelServerConfig": (
        "1 model_config_list tensorflow.serving.ModelConfigList"
    ),
    "tensorflow.serving.ReloadConfigRequest": "1 config tensorflow.serving.ModelServerConfig",
    "tensorflow.serving.ReloadConfigResponse": "1 status tensorflow.serving.StatusProto",
}

_Field = descriptor_pb2.FieldDescriptorProto


def _add_field(message: Any, words: str, package: str) -> None:
    number, name, kind = words.split()
    entry = message.field.add(name=name, number=int(number))
    repeated = kind.endswith("*")
    entry.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    kind = kind.removesuffix("*")
    if kind.startswith("{"):
        # As protobuf writes a map: repeated messages of a nested type with key and value.
        title = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        nested = message.nested_type.add(name=title)
        nested.options.map_entry = True
        _add_field(nested, "1 key string", package)
        _add_field(nested, f"2 value {kind[1:-1]}", package)
        entry.label = _Field.LABEL_REPEATED
        kind = f"{package}.{message.name}.{title}"
    if "." in kind:
        entry.type, entry.type_name = _Field.TYPE_MESSAGE, f".{kind}"
    else:
        entry.type = getattr(_Field, f"TYPE_{kind.upper()}")


def _make_pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for known in (any_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for package in (CORE, SERVING):
        file = descriptor_pb2.FileDescriptorProto(
            name=f"{package}/{FILE}", package=package, syntax="proto3"
        )
        file.dependency.extend(
            [any_pb2.DESCRIPTOR.name, wrappers_pb2.DESCRIPTOR.name]
            + [f"{CORE}/{FILE}"] * (package == SERVING)
        )
        for title, fields in _MESSAGES.items():
            if title.rpartition(".")[0] != package:
                continue
            message = file.message_type.add(name=title.rpartition(".")[2])
            for words in filter(None, fields.split(", ")):
                _add_field(message, words, package)
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _make_pool()


def message(name: str) -> Any:
    """Return the class of a message by its full name, such as `tensorflow.TensorProto`."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))
