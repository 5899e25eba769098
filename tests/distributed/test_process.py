"""The place of a process, from its environment."""

import pytest
from convoy import distributed


def test_alone_without_variables():
    assert distributed.requested() is None
    assert (distributed.count(), distributed.index(), distributed.is_first()) == (1, 0, True)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {distributed.COUNT: "two", distributed.INDEX: "0"},
            "CONVOY_PROCESSES='two' is not a number",
        ),
        ({distributed.COUNT: "2"}, "CONVOY_PROCESS='' is not a number"),
        ({distributed.COUNT: "2", distributed.INDEX: "2"}, "CONVOY_PROCESS=2 does not exist"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(monkeypatch, variables, message):
    monkeypatch.setenv(distributed.COORDINATOR, "127.0.0.1:1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        distributed.requested()
