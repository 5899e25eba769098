import pytest
from convoy.estimator.user_functions import (
    argument_names,
    as_arguments,
    as_list,
    call_with_named,
    check_arguments,
)


def test_a_function_receives_the_arguments_that_it_names():
    available = {"mode": 1, "params": 2}
    assert call_with_named(lambda params: params, available) == 2
    assert call_with_named(lambda **kwargs: kwargs, available) == available
    assert argument_names(lambda a, b=1: None) == ["a", "b"]
    assert argument_names(lambda a, **others: None) is None


def test_an_argument_that_is_not_available_needs_a_default():
    check_arguments(lambda mode, size=1, *others: None, "function", ["mode"])
    message = "The function has an argument 'size', but receives only mode. Rename the argument"
    with pytest.raises(ValueError, match=message):
        check_arguments(lambda size: None, "function", ["mode"])


def test_values_become_arguments():
    assert as_list(None) == []
    assert as_list((1, 2)) == [1, 2]
    assert as_list(1) == [1]
    assert as_arguments([1, 2]) == ([1, 2], {})
    assert as_arguments({"a": 1}) == ([], {"a": 1})
    assert as_arguments({0: 1}) == ([{0: 1}], {})
