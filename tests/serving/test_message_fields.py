import pytest
from convoy.serving import message_fields
from convoy.serving import tensorflow_serving_pb2 as messages
from convoy.serving.message_fields import has_few_fields

DESCRIPTOR = messages.PredictRequest.DESCRIPTOR


def test_a_large_tensor_has_few_fields():
    request = messages.PredictRequest()
    request.inputs["x"].tensor_content = bytes(1 << 20)
    request.inputs["y"].float_val.extend([1.0] * 100_000)
    assert has_few_fields(request.SerializeToString(), DESCRIPTOR)


def test_millions_of_small_messages_are_found_at_any_depth():
    request = messages.PredictRequest()
    for _ in range(message_fields.MAX_FIELDS // 2 + 10):
        request.inputs["x"].tensor_shape.dim.add(size=1)
    assert not has_few_fields(request.SerializeToString(), DESCRIPTOR)
    assert not has_few_fields(b"\x12\x00" * (message_fields.MAX_FIELDS + 1), DESCRIPTOR)


@pytest.mark.parametrize("data", [b"\xff" * 70_000, b"\x12\xff\xff\xff\xff\x7f" + bytes(70_000)])
def test_damaged_data_are_left_to_the_parser(data):
    assert has_few_fields(data, DESCRIPTOR)
