"""Warnings point at the user's line."""

import pytest
from convoy import user_warnings


def test_a_warning_points_at_the_nearest_line_outside_of_convoy_and_keras():
    inner = {"__name__": "convoy.engine.run", "warn": user_warnings.warn}
    exec("def run():\n    warn('look')\n", inner)
    outer = {"__name__": "keras.src.trainers", "run": inner["run"]}
    exec("def fit():\n    run()\n", outer)
    with pytest.warns(UserWarning, match="look") as shown:
        outer["fit"]()
    assert [warning.filename for warning in shown] == [__file__]


def test_a_warning_without_a_user_points_at_the_outermost_line():
    alone = {"__name__": "convoy.engine.run", "warn": user_warnings.warn}
    with pytest.warns(UserWarning, match="look"):
        exec("warn('look')", alone)


def test_a_warning_about_the_configuration_is_shown_once_for_all_lines():
    with pytest.warns(UserWarning, match="once in this test") as shown:
        _warn_at_two_lines()
    assert [warning.filename for warning in shown] == [__file__]


def _warn_at_two_lines():
    user_warnings.warn_once("once in this test")
    user_warnings.warn_once("once in this test")
