"""The difference from float32 on samples, and its entry in the manifest."""

import math

import keras
import numpy as np
import pytest
from convoy import precision
from convoy.serving.accuracy import (
    Difference,
    ExportedPrecision,
    check_samples,
    measure_difference,
    read_samples,
    relative_difference,
)
from convoy.serving.model_precision import convert
from convoy.serving.signature import Signature, TensorSpec
from tests.serving.models import classifier

ONE = Signature((TensorSpec("image", "float32", (2,)),), ())
TWO = Signature((TensorSpec("a", "float32", (2,)), TensorSpec("b", "uint8", ())), ())


def scaled(*factors):
    x = keras.Input((2,), name="x")
    return keras.Model(x, keras.layers.Rescaling(list(factors))(x))


def test_largest_and_mean_difference_and_equal_classes_count_each_sample_once():
    samples = {"x": np.array([[1, 2], [4, 1], [3, 1]], "float32")}
    found = measure_difference(scaled(1.0, 3.0), scaled(1.0, 1.0), samples, batch_size=2)
    # The second column is 2 x higher: by 4, 2 and 2. In the last sample that changes the class to
    # a tie, which the first class wins.
    assert found == Difference(3, 4.0, pytest.approx(8 / 6), 1.0)
    other = measure_difference(scaled(1.0, 3.5), scaled(1.0, 1.0), samples, batch_size=4)
    assert other.same_top_1 == pytest.approx(2 / 3)


def test_a_model_in_16_bits_differs_by_its_rounding(rng):
    model = classifier()
    half = convert(model, precision.find("bfloat16"))
    samples = {"image": rng.random((5, 8, 8, 3)).astype("float32")}
    found = measure_difference(half, model, samples, batch_size=4)
    assert 0 < found.mean <= found.largest < 2.0**-6
    exact = measure_difference(model, model, samples, batch_size=4)
    assert exact.largest < 1e-5


def test_float16_that_overflows_is_refused():
    x = keras.Input((2,), name="x")
    large = keras.layers.Rescaling(1e4)(keras.layers.Rescaling(1e4)(x))
    model = keras.Model(x, keras.layers.Dense(2)(large))
    half = convert(model, precision.find("float16"))
    samples = {"x": np.ones((1, 2), "float32")}
    with pytest.raises(ValueError, match=r"overflows in this precision.*'bfloat16'"):
        measure_difference(half, model, samples, batch_size=1)


def test_several_outputs_have_no_top_1():
    x = keras.Input((2,), name="x")
    model = keras.Model(x, [keras.layers.Rescaling(2.0)(x), keras.layers.Rescaling(3.0)(x)])
    found = measure_difference(model, model, {"x": np.ones((1, 2), "float32")}, batch_size=1)
    assert found == Difference(1, 0.0, 0.0, None)
    assert "top-1" not in str(found)


def test_relative_to_the_largest_value():
    assert relative_difference(np.array([1.0, -4.5]), np.array([1.0, -4.0])) == 0.125
    assert relative_difference(np.zeros(2), np.zeros(2)) == 0.0


@pytest.mark.parametrize(
    "given", [np.ones((3, 2)), {"image": np.ones((3, 2))}, {"x": np.ones((3, 2))}]
)
def test_samples_of_one_input_need_no_name(given):
    (array,) = check_samples(given, ONE).values()
    assert (array.shape, array.dtype) == ((3, 2), "float32")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": np.ones((3, 2))}, r"have the arrays \['a'\]; expected .* \['a', 'b'\]"),
        ({"a": np.ones((3, 1)), "b": np.ones(3, "uint8")}, r"'a' have the shape \[3, 1\]"),
        ({"a": np.ones((0, 2)), "b": np.ones(0, "uint8")}, "with one sample or more"),
        ({"a": np.ones((3, 2)), "b": np.ones(3)}, "'b' are of type float64; expected uint8"),
        (
            {"a": np.ones((3, 2)), "b": np.ones(2, "uint8")},
            "different numbers of samples: .* Pass the same number for each",
        ),
    ],
)
def test_other_samples_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        check_samples(given, TWO)


def test_files_that_are_not_npz_are_refused_in_one_line(tmp_path):
    file = tmp_path / "samples.npz"
    for content in (None, b"no arrays", b"", b"PK\x03\x04 damaged"):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ValueError, match=r"samples.npz is not an .npz file") as it:
            read_samples(file)
        assert "\n" not in str(it.value)
    np.savez(file, image=np.ones(3))
    np.testing.assert_array_equal(read_samples(file)["image"], np.ones(3))


def test_the_entry_of_a_manifest_is_read_back():
    for difference in (None, Difference(3, 0.5, 0.1, None), Difference(3, 0.5, 0.1, 0.99)):
        written = ExportedPrecision("bfloat16", 0.01, difference)
        assert ExportedPrecision.from_json(written.to_json()) == written


@pytest.mark.parametrize(
    "change",
    [
        {"policy": 1},
        {"example_difference": -1.0},
        {"example_difference": math.nan},
        {"difference": {"samples": 1, "largest": "x", "mean": 0, "same_top_1": None}},
        {"difference": {"samples": True, "largest": 0, "mean": 0, "same_top_1": None}},
    ],
)
def test_a_damaged_entry_is_refused(change):
    with pytest.raises(ValueError, match="is not a precision"):
        ExportedPrecision.from_json(ExportedPrecision("bfloat16").to_json() | change)


def test_what_was_not_measured_is_said():
    assert "was not measured" in str(ExportedPrecision("bfloat16"))
    assert str(ExportedPrecision("float32")) == "precision float32"
    measured = ExportedPrecision("bfloat16", 0.0, Difference(1234, 0.5, 0.125, 0.99))
    assert str(measured) == (
        "precision bfloat16: on 1,234 samples, the outputs differ from float32 by at most 0.5, on "
        "average by 0.125; 99.00% have the same top-1 class"
    )
