import numpy as np
import pytest
from convoy.arguments import require_package, whole_number


@pytest.mark.parametrize("value", [1, 10**30, np.int64(3)])
def test_whole_numbers_of_python_and_numpy_are_accepted(value):
    assert whole_number("count", value, "a count") == value


@pytest.mark.parametrize(
    "value", [0, -1, 1.0, float("nan"), "1", None, True, [1], np.array([1, 2])]
)
def test_anything_else_is_one_line(value):
    with pytest.raises(ValueError, match=r"is not a count\. Pass 1 or more") as raised:
        whole_number("count", value, "a count")
    assert str(raised.value).startswith(f"count={value!r}")


def test_zero_is_accepted_if_it_is_the_minimum():
    assert whole_number("size", 0, "a number of bytes", 0) == 0


def test_a_missing_package_is_named_as_it_is_installed():
    require_package("json", "This")
    with pytest.raises(ValueError, match="--flag needs the package a-b"):
        require_package("no_such_package", "--flag", "a-b")


def test_a_missing_package_of_an_extra_is_installed_with_it():
    with pytest.raises(ValueError, match=r"needs the package a-b.* 'keras-convoy\[images\]'$"):
        require_package("no_such_package", "--flag", "a-b", "images")
