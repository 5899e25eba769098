import pytest
from convoy.ipu import checks


def test_a_range_has_an_upper_bound_or_none():
    for value in (None, 1, 3):
        checks.in_range("depth", value, 1, 3)
    checks.in_range("depth", 4, 1)
    with pytest.raises(ValueError, match=r"depth=4 is out of range\. Pass 1 to 3"):
        checks.in_range("depth", 4, 1, 3)
    with pytest.raises(ValueError, match=r"depth=0 is out of range\. Pass 1 or more"):
        checks.in_range("depth", 0, 1)


def test_a_multiple_is_suggested():
    checks.multiple("steps", 4, "loop", 2)
    with pytest.raises(ValueError, match=r"steps=5 is not a multiple of loop=2\. Pass 6"):
        checks.multiple("steps", 5, "loop", 2)
    with pytest.raises(RuntimeError, match="loop=2, so a device call would end inside of a weight"):
        checks.multiple("steps", 5, "loop", 2, checks.INSIDE_OF_UPDATE, RuntimeError)


def test_types_lengths_and_names_are_named_in_errors():
    checks.instance("queue", None, list, "a list")
    with pytest.raises(TypeError, match=r"queue is of type int\. Pass a list"):
        checks.instance("queue", 1, list, "a list")
    with pytest.raises(ValueError, match=r"mapping has 1 entries\. Pass 2, one for each"):
        checks.one_per_stage("mapping", [0], 2)
    with pytest.raises(ValueError, match=r"f\(\) does not take 'b'. It takes a"):
        checks.known_names("f", ["a", "b"], ["a"])
