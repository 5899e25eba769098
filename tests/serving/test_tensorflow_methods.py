import asyncio

import numpy as np
import pytest
from convoy.serving import decoding
from convoy.serving.admission import Admission, AdmissionOptions
from convoy.serving.errors import ServingError
from convoy.serving.signature import Signature, TensorSpec
from convoy.serving.tensorflow_methods import (
    FeatureReader,
    check_signature_name,
    class_scores,
    example_inputs,
    regression_values,
)

PAIR = Signature((TensorSpec("a", "float32", (2,)), TensorSpec("b", "int32", ())), ())
LONG = Signature((TensorSpec("a", "float32", (100,)),), ())


class Reader:
    """Reads features that are arrays or bytes, and remembers which."""

    def __init__(self):
        self.read = []

    def is_file(self, feature):
        return isinstance(feature, bytes)

    def file_bytes(self, feature, _):
        self.read.append("size")
        return len(feature)

    def file(self, feature):
        self.read.append("file")
        return feature

    def numbers(self, feature, spec):
        self.read.append(spec.name)
        return np.array(feature, spec.numpy_dtype)

    def inputs(self, examples, context, signature, max_samples=1000):
        functions = FeatureReader(self.is_file, self.file_bytes, self.file, self.numbers)
        return example_inputs(examples, context, signature, functions, max_samples)


@pytest.fixture
def made():
    return Admission(AdmissionOptions(max_memory_bytes=8 << 20), 1000)


def test_a_feature_of_the_context_is_read_once():
    reader = Reader()
    found = reader.inputs([{}] * 1000, {"a": [1, 2], "b": 3, "c": 4}, PAIR)
    assert reader.read == ["a", "b"]
    assert {name: value.shape for name, value in found.items()} == {"a": (1000, 2), "b": (1000,)}
    assert (found["a"] == [1, 2]).all()
    assert (found["b"] == 3).all()


def test_a_context_is_the_same_as_its_features_in_each_example():
    context = {"a": [1, 2], "b": 3}
    examples = [{"a": [4, 5]}, {}, {"b": 6}, {"a": [7, 8], "b": 9}, {}]
    found = Reader().inputs(examples, context, PAIR)
    expected = Reader().inputs([context | example for example in examples], {}, PAIR)
    for spec in PAIR.inputs:
        np.testing.assert_array_equal(found[spec.name], expected[spec.name])
        assert found[spec.name].dtype == spec.numpy_dtype


@pytest.mark.parametrize("context", [{}, {"a": [1, 2]}])
def test_a_feature_that_neither_an_example_nor_the_context_has_is_missing(context):
    reader = Reader()
    with pytest.raises(ServingError, match="Missing feature: b in example"):
        reader.inputs([{"a": [1, 2], "b": 3}, {"a": [1, 2]}], context, PAIR)
    assert not reader.read


# The array of a shared feature has one sample; it is charged with the samples that batches contain.
@pytest.mark.parametrize(
    ("examples", "samples"),
    [([{"a": [1] * 100}] * 10, 10), ([{}] * 10, 10 + 1), ([{}, {"a": [2] * 100}] * 5, 10 + 6)],
    ids=["own", "shared", "both"],
)
def test_a_batch_is_charged_before_it_is_read(made, examples, samples):
    reader, held = Reader(), []
    with made.request("a"):
        numbers = reader.numbers
        reader.numbers = lambda *given: held.append(made.held_bytes) or numbers(*given)
        reader.inputs(examples, {"a": [1] * 100}, LONG)
        assert set(held) == {made.held_bytes} == {samples * 100 * 4}


def test_a_batch_that_is_too_large_is_refused_before_it_is_read(made):
    reader, wide = Reader(), Signature((TensorSpec("a", "float32", (20_000,)),), ())
    with made.request("a"):
        with pytest.raises(ServingError, match="one request may take at most 1048576") as error:
            reader.inputs([{}] * 1000, {"a": [0] * 20_000}, wide)
        assert made.held_bytes == 0
    assert error.value.http_status == 413
    assert not reader.read


def test_a_file_for_a_model_without_images_is_refused_before_it_is_read(made):
    reader = Reader()
    with made.request("a"):
        with pytest.raises(ServingError, match=r"takes float32 of shape \[2\], not bytes"):
            reader.inputs([{}] * 1000, {"a": bytes(1 << 20), "b": 1}, PAIR)
        assert made.held_bytes == 0
    assert not reader.read


def test_a_batch_that_is_large_is_copied_in_a_thread_and_charged_once(made):
    samples = decoding.INLINE_PIXELS // 100 + 1
    examples, reader = [{"a": [2] * 100}, *[{}] * (samples - 1)], Reader()
    decoders = decoding.Decoders()

    async def decode():
        return await decoders.run(lambda: reader.inputs(examples, {"a": [1] * 100}, LONG), 10)

    try:
        with made.request("a"):
            found = asyncio.run(decode())["a"]
            assert made.held_bytes == (samples + 2) * 100 * 4
    finally:
        decoders.close()
    assert (found[0] == 2).all()
    assert (found[1:] == 1).all()
    assert reader.read == ["a"] * 2


def test_every_model_has_one_signature_of_several_names():
    for name in ("", "serving_default", "tensorflow/serving/classify"):
        check_signature_name(name)
    with pytest.raises(ServingError, match='"other" not found in signature def'):
        check_signature_name("other")


def test_classes_have_their_names_or_none():
    outputs = {"output_0": np.array([[0.25, 0.75]], np.float32)}
    assert class_scores(outputs, ["a", "b"])[0] == ["a", "b"]
    labels, scores = class_scores(outputs, [])
    assert labels == ["", ""]
    np.testing.assert_array_equal(scores, outputs["output_0"])


@pytest.mark.parametrize(
    "outputs", [{"a": np.zeros((2, 3), np.int32)}, {"a": np.zeros(2)}, {"a": 1, "b": 2}]
)
def test_other_outputs_are_no_scores(outputs):
    with pytest.raises(ServingError, match="Expected a classification signature"):
        class_scores(outputs, [])


def test_a_regression_has_one_value_per_sample():
    np.testing.assert_array_equal(regression_values({"a": np.array([[1.0], [2.0]])}), [1, 2])
    with pytest.raises(ServingError, match="Expected a regression signature"):
        regression_values({"a": np.zeros((2, 2))})
