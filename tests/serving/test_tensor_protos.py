import ml_dtypes
import numpy as np
import pytest
from convoy.serving.errors import ServingError
from convoy.serving.signature import TYPES, Signature, TensorSpec
from convoy.serving.tensor_protos import from_examples, to_array, to_proto
from convoy.serving.tensorflow_serving_pb2 import DataType, Input, TensorProto

VALUES = {"bool": [True, False, True], "bfloat16": [0.5, -2.0, 3.0], "float16": [0.5, -2.0, 3.0]}


def listed(dtype, values):
    """Return a message whose values are in the list for their type."""
    proto = TensorProto(dtype=TYPES[dtype].tensorflow)
    proto.tensor_shape.dim.add(size=len(values))
    getattr(proto, TYPES[dtype].value_field).extend(values)
    return proto


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_read_from_bytes_and_from_lists(dtype):
    spec = TensorSpec("x", dtype, ())
    array = np.array(VALUES.get(dtype, [1, 2, 3]), spec.numpy_dtype)
    np.testing.assert_array_equal(to_array(to_proto(array, packed=False), spec, 10), array)
    packed = TensorProto(dtype=TYPES[dtype].tensorflow, tensor_content=array.tobytes())
    packed.tensor_shape.dim.add(size=3)
    np.testing.assert_array_equal(to_array(packed, spec, 10), array)
    values = array.view(np.uint16) if dtype in ("float16", "bfloat16") else array
    found = to_array(listed(dtype, values.tolist()), spec, 10)
    assert found.dtype == spec.numpy_dtype
    np.testing.assert_array_equal(found, array)


def test_bfloat16_keeps_its_bits():
    array = np.array([1.5], ml_dtypes.bfloat16)
    assert to_proto(array, packed=False).tensor_content == array.tobytes()


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (listed("int32", [1]), "is of type int32; expected uint8"),
        (TensorProto(dtype=DataType.DT_INVALID), "is of type number 0"),
        (listed("uint8", [256]), "has a number that uint8 cannot hold"),
        (TensorProto(dtype=DataType.DT_STRING), "0 strings"),
    ],
)
def test_messages_that_do_not_fit_are_refused(proto, message):
    with pytest.raises(ServingError, match=message):
        to_array(proto, TensorSpec("x", "uint8", ()), 10)


def test_the_features_of_the_context_belong_to_every_example():
    specs = (TensorSpec("a", "float32", (2,)), TensorSpec("b", "int32", ()))
    source = Input()
    examples = source.example_list_with_context
    examples.context.features.feature["b"].int64_list.value.append(7)
    for value in (1.0, 2.0):
        feature = examples.examples.add().features.feature["a"]
        feature.float_list.value.extend([value, value])
    found = from_examples(source, Signature(specs, ()), 10)
    np.testing.assert_array_equal(found["a"], [[1, 1], [2, 2]])
    np.testing.assert_array_equal(found["b"], [7, 7])
    examples.examples[0].features.feature["a"].float_list.value.append(3.0)
    with pytest.raises(ServingError, match="has 3 values in its float_list; expected 2"):
        from_examples(source, Signature(specs, ()), 10)
