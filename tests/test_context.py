from contextvars import ContextVar
from types import SimpleNamespace

import pytest
from convoy.context import bound, changed

LEVEL: ContextVar[int] = ContextVar("level", default=0)


def test_a_block_sees_its_own_value_and_the_code_after_it_the_earlier_one():
    with bound(LEVEL, 1) as outer:
        assert (outer, LEVEL.get()) == (1, 1)
        with bound(LEVEL, 2):
            assert LEVEL.get() == 2
        assert LEVEL.get() == 1
    assert LEVEL.get() == 0


def test_a_failure_in_the_block_restores_the_value_too():
    with pytest.raises(KeyError), bound(LEVEL, 1):
        raise KeyError
    assert LEVEL.get() == 0


def test_attributes_have_other_values_in_the_block_only():
    first, second = SimpleNamespace(size=1), SimpleNamespace(size=2, name="second")
    with changed(iter([(first, "size", 10), (second, "name", "other")])):
        assert (first.size, second.size, second.name) == (10, 2, "other")
    assert (first.size, second.name) == (1, "second")
    with pytest.raises(KeyError), changed([(first, "size", 10)]):
        raise KeyError
    assert first.size == 1
