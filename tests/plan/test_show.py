import pytest
from convoy.plan.show import counted, duration, number


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.012345, "0.01235"), (24.781, "24.78"), (999.96, "1,000"), (113_123.0, "113,100")],
)
def test_numbers_have_four_digits_and_no_exponent(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0012, "1.2 ms"), (0.7241, "724.1 ms"), (1.0, "1 s"), (522.3, "522.3 s"), (5223, "5,223 s")],
)
def test_times_are_in_a_unit_of_their_size(seconds, shown):
    assert duration(seconds) == shown


def test_one_of_a_thing_has_no_plural():
    assert [counted(n, "replica") for n in (0, 1, 2)] == ["0 replicas", "1 replica", "2 replicas"]
