"""The place of a process, from its environment."""

import pytest
from convoy.distributed import process


def test_alone_without_variables():
    assert process.requested() is None
    assert (process.count(), process.index(), process.is_first()) == (1, 0, True)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {process.COUNT: "two", process.INDEX: "0"},
            "CONVOY_PROCESSES='two' is not a number",
        ),
        ({process.COUNT: "2"}, "CONVOY_PROCESS='' is not a number"),
        ({process.COUNT: "2", process.INDEX: "2"}, "CONVOY_PROCESS=2 does not exist"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(monkeypatch, variables, message):
    monkeypatch.setenv(process.COORDINATOR, "127.0.0.1:1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        process.requested()
