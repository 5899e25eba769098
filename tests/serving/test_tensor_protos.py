import ml_dtypes
import numpy as np
import pytest
from convoy.serving.errors import ServingError
from convoy.serving.signature import TYPES, Signature, TensorSpec
from convoy.serving.tensor_protos import from_examples, to_array, to_proto
from convoy.serving.tensorflow_serving_pb2 import DataType, Input, TensorProto
from tests.serving.test_json_values import charge_and_peak, noise_png

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


IMAGE = Signature((TensorSpec("image", "uint8", (8, 8, 3)),), ())
WIDE = Signature((TensorSpec("image", "float32", (20_000,)),), ())


def fill(feature, value):
    if isinstance(value, bytes):
        feature.bytes_list.value.append(value)
    elif value and isinstance(value[0], float):
        feature.float_list.value.extend(value)
    else:
        feature.int64_list.value.extend(value)


def with_context(context, examples):
    """Return examples that have an image or nothing, with an image in the context."""
    source = Input()
    shared = source.example_list_with_context
    fill(shared.context.features.feature["image"], context)
    for value in examples:
        example = shared.examples.add()
        if value is not None:
            fill(example.features.feature["image"], value)
    return source


def spelled_out(context, examples):
    source = Input()
    for value in examples:
        example = source.example_list.examples.add()
        fill(example.features.feature["image"], context if value is None else value)
    return source


def test_an_image_in_the_context_is_decoded_once():
    data = noise_png(360)
    from_examples(with_context(data, [None]), IMAGE, 1000)
    source = with_context(data, [None] * 1000)
    charge, peak, error = charge_and_peak(lambda: from_examples(source, IMAGE, 1000))
    assert error is None
    assert charge >= 1000 * 192 + len(data) + 360 * 360 * 3 + 192
    assert peak < 4 * len(data)


def test_a_file_in_the_context_of_a_model_without_images_is_not_read():
    source = with_context(bytes(1 << 20), [None] * 1000)
    charge, peak, error = charge_and_peak(lambda: from_examples(source, WIDE, 1000))
    assert "takes float32 of shape [20000], not bytes" in error.message
    assert (charge, error.http_status) == (0, 400)
    assert peak < 1 << 20


def test_too_many_examples_are_refused_before_the_context_is_read():
    source = with_context(b"", [None] * 1001)
    charge, _, error = charge_and_peak(lambda: from_examples(source, IMAGE, 1000))
    assert "1001 samples; at most 1000" in error.message
    assert (charge, error.http_status) == (0, 413)


def test_numbers_of_the_context_are_not_copied_for_each_example():
    source = with_context([0.5] * 20_000, [None] * 1000)
    charge, peak, error = charge_and_peak(lambda: from_examples(source, WIDE, 1000))
    assert error is None
    assert charge == (1000 + 1) * 20_000 * 4
    assert peak < 4 << 20


def test_the_numbers_of_examples_are_charged_and_those_that_do_not_fit_are_not_read():
    source = with_context([0.5], [[0.5] * 20_000] * 10)
    charge, _, error = charge_and_peak(lambda: from_examples(source, WIDE, 1000))
    assert error is None
    assert charge == 10 * 20_000 * 4
    long = with_context([0.5] * 1_000_000, [None])
    _, peak, error = charge_and_peak(lambda: from_examples(long, WIDE, 1000))
    assert "has 1000000 values in its float_list; expected 20000" in error.message
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "examples",
    [
        [None],
        [None, None],
        [[7] * 192, None],
        [None, noise_png(8), noise_png(9), None],
        [noise_png(8), [7] * 192],
    ],
)
@pytest.mark.parametrize("context", [noise_png(30), [9] * 192], ids=["file", "numbers"])
def test_a_context_is_the_same_as_its_features_in_each_example(examples, context):
    found = from_examples(with_context(context, examples), IMAGE, 10)["image"]
    expected = from_examples(spelled_out(context, examples), IMAGE, 10)["image"]
    assert (found.shape, found.dtype) == ((len(examples), 8, 8, 3), np.uint8)
    np.testing.assert_array_equal(found, expected)


def test_a_long_list_is_read_in_steps():
    values = np.random.default_rng(0).normal(size=20_000).astype(np.float32)
    found = from_examples(spelled_out(values.tolist(), [None]), WIDE, 10)["image"]
    np.testing.assert_array_equal(found[0], values)
    whole = Signature((TensorSpec("image", "uint8", (10_000,)),), ())
    numbers = (np.arange(10_000) % 256).tolist()
    found = from_examples(spelled_out(numbers, [None]), whole, 10)["image"]
    np.testing.assert_array_equal(found[0], numbers)
    with pytest.raises(ServingError, match="has a number that uint8 cannot hold"):
        from_examples(spelled_out([*numbers[:-1], 256], [None]), whole, 10)
