"""Environment variables that disable a feature."""

import pytest
from convoy.environment import is_off


@pytest.mark.parametrize("value", ["0", "false", "False", "off", " OFF ", "no"])
def test_values_that_disable_a_feature(monkeypatch, value):
    monkeypatch.setenv("CONVOY_TEST_FEATURE", value)
    assert is_off("CONVOY_TEST_FEATURE")


@pytest.mark.parametrize("value", ["", "1", "on", "/cache/0", "nothing"])
def test_other_values_do_not(monkeypatch, value):
    monkeypatch.setenv("CONVOY_TEST_FEATURE", value)
    assert not is_off("CONVOY_TEST_FEATURE")


def test_a_variable_that_is_not_set_does_not(monkeypatch):
    monkeypatch.delenv("CONVOY_TEST_FEATURE", raising=False)
    assert not is_off("CONVOY_TEST_FEATURE")
