import numpy as np
import pytest
from convoy.serving.errors import ServingError
from convoy.serving.tensorflow_methods import (
    check_signature_name,
    class_scores,
    regression_values,
)


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
