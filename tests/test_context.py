from contextvars import ContextVar

import pytest
from convoy.context import bound

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
