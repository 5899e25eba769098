import pytest
from tests import parts
from tests.parts import PARTS, Part


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setitem(PARTS, "an abacus", Part("apt-get install abacus", lambda: False))


def skipped(reason):
    return pytest.TestReport("test", ("file", 1, ""), {}, "skipped", ("file", 1, reason), "setup")


def test_a_test_that_needs_a_missing_part_is_skipped(absent):
    with pytest.raises(pytest.skip.Exception, match="needs an abacus: apt-get install abacus"):
        parts.require("an abacus")
    assert parts.needs("an abacus").args == (True,)


def test_a_test_whose_part_is_there_runs():
    parts.require("bash")
    assert parts.needs("bash").args == (False,)


def test_the_summary_has_a_line_for_each_missing_part(absent):
    reason = f"Skipped: {parts.needs('an abacus').kwargs['reason']}"
    reports = [skipped(reason), skipped(reason), skipped("Skipped: there is one core")]
    assert parts.missing(reports) == ["an abacus: apt-get install abacus  (skipped 2 tests)"]
