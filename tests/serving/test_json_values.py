import numpy as np
import pytest
from convoy.serving import json_values
from convoy.serving.errors import ServingError
from convoy.serving.signature import Signature, TensorSpec

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
