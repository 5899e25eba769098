import base64
import io
import tracemalloc

import numpy as np
import pytest
from convoy.serving import json_values
from convoy.serving.admission import Admission, AdmissionOptions
from convoy.serving.errors import ServingError
from convoy.serving.signature import Signature, TensorSpec
from PIL import Image

IMAGE = Signature((TensorSpec("image", "uint8", (8, 8, 3)),), ())
WIDE = Signature((TensorSpec("x", "float32", (20_000,)),), ())
BOTH = Signature((TensorSpec("a", "int32", ()), TensorSpec("b", "float32", (2,))), ())


def test_rows_and_columns_are_the_same_inputs():
    rows = json_values.row_inputs([{"a": 1, "b": [1, 2]}, {"a": 2, "b": [3, 4]}], BOTH, 10)
    columns = json_values.column_inputs({"a": [1, 2], "b": [[1, 2], [3, 4]]}, BOTH, 10)
    for name in ("a", "b"):
        np.testing.assert_array_equal(rows[name], columns[name])
        assert rows[name].dtype == columns[name].dtype == BOTH.input(name).numpy_dtype


def test_several_outputs_are_rows_or_columns():
    outputs = {"a": np.array([1, 2]), "b": np.array([0.5, 0.25], np.float32)}
    assert json_values.row_outputs(outputs) == [{"a": 1, "b": 0.5}, {"a": 2, "b": 0.25}]
    assert json_values.column_outputs(outputs) == {"a": [1, 2], "b": [0.5, 0.25]}


def test_outputs_have_as_few_digits_as_their_type_needs():
    assert json_values.to_json(np.array([0.2, 1 / 3], np.float32)) == [0.2, 0.33333334]
    assert json_values.to_json(np.array([0.1], np.float16)) == [0.1]


def test_a_plain_list_cannot_be_several_inputs():
    with pytest.raises(ServingError, match="expecting list of objects"):
        json_values.row_inputs([1, 2], BOTH, 10)
    with pytest.raises(ServingError, match="expecting an object"):
        json_values.column_inputs([1, 2], BOTH, 10)


def noise_png(side):
    """Return a square image that takes about as many bytes as its pixels."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8)).save(
        file, "PNG"
    )
    return file.getvalue()


def in_base64(data):
    return {"b64": base64.b64encode(data).decode()}


def charge_and_peak(function):
    """Return the bytes that a function reserves, the bytes that it allocates, and its error."""
    made, raised = Admission(AdmissionOptions(max_memory_bytes=8 << 30), 1000), None
    tracemalloc.start()
    try:
        with made.request("a"):
            try:
                function()
            except ServingError as error:
                raised = error
            return made.held_bytes, tracemalloc.get_traced_memory()[1], raised
    finally:
        tracemalloc.stop()


def test_an_image_in_the_context_is_decoded_once():
    data = noise_png(360)
    context = {"image": in_base64(data)}
    # The first decoding loads modules.
    json_values.from_examples([{}], context, IMAGE, 1000)
    charge, peak, error = charge_and_peak(
        lambda: json_values.from_examples([{}] * 1000, context, IMAGE, 1000)
    )
    assert error is None
    # The batch, the file, its pixels and the result.
    assert charge >= 1000 * 192 + len(data) + 360 * 360 * 3 + 192
    assert peak < 4 * len(data)


def test_a_file_in_the_context_of_a_model_without_images_is_not_decoded():
    context = {"x": in_base64(bytes(1 << 20))}
    charge, peak, error = charge_and_peak(
        lambda: json_values.from_examples([{}] * 1000, context, WIDE, 1000)
    )
    assert "not bytes" in error.message
    assert (charge, error.http_status) == (0, 400)
    assert peak < 1 << 20


def test_too_many_examples_are_refused_before_the_context_is_read():
    charge, _, error = charge_and_peak(
        lambda: json_values.from_examples([{}] * 1001, {"image": {"b64": "?"}}, IMAGE, 1000)
    )
    assert "1001 samples; at most 1000" in error.message
    assert (charge, error.http_status) == (0, 413)


def test_numbers_of_the_context_are_not_copied_for_each_example():
    context = {"x": [0.5] * 20_000}
    charge, peak, error = charge_and_peak(
        lambda: json_values.from_examples([{}] * 1000, context, WIDE, 1000)
    )
    assert error is None
    assert charge == (1000 + 1) * 20_000 * 4
    assert peak < 4 << 20


@pytest.mark.parametrize(
    "examples",
    [
        [{}],
        [{}, {}],
        [{"image": [7] * 192}, {}],
        [{}, {"image": in_base64(noise_png(8))}, {"image": [in_base64(noise_png(9))]}, {}],
        [{"image": in_base64(noise_png(8))}, {"image": [7] * 192}],
    ],
)
@pytest.mark.parametrize("shared", [in_base64(noise_png(30)), [9] * 192], ids=["file", "numbers"])
def test_a_context_is_the_same_as_its_features_in_each_example(examples, shared):
    context = {"image": shared}
    found = json_values.from_examples(examples, context, IMAGE, 10)["image"]
    each = [context | example for example in examples]
    expected = json_values.from_examples(each, None, IMAGE, 10)["image"]
    assert (found.shape, found.dtype) == ((len(examples), 8, 8, 3), np.uint8)
    np.testing.assert_array_equal(found, expected)


def test_files_for_a_model_without_images_are_not_decoded():
    rows = [in_base64(bytes(1 << 20))] * 8
    charge, peak, error = charge_and_peak(lambda: json_values.row_inputs(rows, WIDE, 10))
    assert "not bytes" in error.message
    assert charge == 0
    assert peak < 1 << 20


def test_files_are_charged_before_they_are_decoded():
    rows = [in_base64(bytes(300_000))] * 8
    made = Admission(AdmissionOptions(max_memory_bytes=8 << 20), 1000)
    with made.request("a"), pytest.raises(ServingError, match="needs 2400000 bytes") as error:
        json_values.row_inputs(rows, IMAGE, 10)
    assert error.value.http_status == 413


@pytest.mark.parametrize("size", [0, 1, 2, 49_152, 49_153, 200_000])
def test_base64_is_decoded_in_parts(size):
    data = np.random.default_rng(0).bytes(size)
    text = base64.b64encode(data).decode()
    assert json_values.decode_base64(text) == data
    padded = base64.b64encode(b"x" * 49_151).decode() + "AAAA"
    with pytest.raises(ServingError, match="Unable to base64 decode"):
        json_values.decode_base64(padded)
