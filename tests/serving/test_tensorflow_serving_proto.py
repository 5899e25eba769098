from pathlib import Path

import convoy
import grpc_tools
import pytest
from convoy.data import tensorflow_pb2
from convoy.serving import tensorflow_serving_pb2 as messages
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_tools import protoc


def test_a_request_has_the_bytes_that_tensorflow_serving_reads():
    request = messages.PredictRequest()
    request.model_spec.name = "half"
    request.model_spec.version.value = 3
    request.model_spec.signature_name = "serving_default"
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add(size=1)
    request.inputs["x"].float_val.append(2.0)
    # Written down by hand from the published numbers of the fields.
    spec = b"\x0a\x04half" + b"\x12\x02\x08\x03" + b"\x1a\x0fserving_default"
    tensor = b"\x08\x01" + b"\x12\x04\x12\x02\x08\x01" + b"\x2a\x04\x00\x00\x00\x40"
    entry = b"\x0a\x01x" + b"\x12" + bytes([len(tensor)]) + tensor
    expected = b"\x0a" + bytes([len(spec)]) + spec + b"\x12" + bytes([len(entry)]) + entry
    assert request.SerializeToString(deterministic=True) == expected


def test_a_status_has_the_bytes_that_clients_read():
    response = messages.GetModelStatusResponse()
    entry = response.model_version_status.add(version=123, state=30)
    entry.status.error_message = "x"
    assert response.SerializeToString() == b"\x0a\x09\x08\x7b\x10\x1e\x1a\x03\x12\x01x"


def test_the_messages_do_not_take_the_names_of_tensorflows():
    # TensorFlow's own modules register these names when they are imported into the same process.
    for name in ("tensorflow.TensorProto", "tensorflow.Example", "tensorflow.serving.ModelSpec"):
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindMessageTypeByName(name)


@pytest.mark.parametrize("module", [messages, tensorflow_pb2])
def test_the_generated_modules_are_those_of_the_proto_files(module, tmp_path):
    # `make proto` generates them.
    source = Path(convoy.__file__).parents[1]
    result = tmp_path / "descriptors"
    words = [
        f"--proto_path={source}",
        f"--proto_path={Path(grpc_tools.__file__).parent / '_proto'}",
    ]
    words += [f"--descriptor_set_out={result}", str(source / module.DESCRIPTOR.name)]
    assert protoc.main(["protoc", *words]) == 0
    (expected,) = descriptor_pb2.FileDescriptorSet.FromString(result.read_bytes()).file
    # The compiler adds names for JSON, which the generated code leaves out.
    generated = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for message in _messages(expected):
        for field in message.field:
            field.ClearField("json_name")
    assert generated == expected


def _messages(parent):
    nested = parent.message_type if hasattr(parent, "message_type") else parent.nested_type
    for message in nested:
        yield message
        yield from _messages(message)
