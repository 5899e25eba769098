import pytest
from convoy.engine import steps_per_execution


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests move by hand."""
    now = [0.0]
    monkeypatch.setattr(steps_per_execution.time, "perf_counter", lambda: now[0])
    return now


def test_a_fixed_pace_stays():
    fixed = steps_per_execution.make_pace(7)
    fixed.observe(7, None, 0.0)
    assert fixed.steps == fixed.block_steps == 7


def test_an_automatic_pace_starts_with_single_steps():
    assert steps_per_execution.make_pace("auto").steps == 1


def test_the_first_call_is_not_counted_because_it_compiles(clock):
    automatic = steps_per_execution.make_pace("auto")
    clock[0] = 60.0
    automatic.observe(1, None, 0.0)
    assert automatic.steps == 1


def test_fast_steps_lead_to_longer_calls_that_stay_below_a_second(clock):
    automatic = steps_per_execution.make_pace("auto")
    seconds_per_step = 0.001
    longest = 0.0
    for _ in range(10):
        start, steps = clock[0], automatic.steps
        clock[0] += steps * seconds_per_step
        longest = max(longest, clock[0] - start)
        automatic.observe(steps, None, start)
    assert automatic.steps == pytest.approx(
        steps_per_execution.TARGET_SECONDS / seconds_per_step, rel=0.01
    )
    assert longest < 1


def test_slow_steps_are_run_one_by_one(clock):
    automatic = steps_per_execution.make_pace("auto")
    for _ in range(3):
        start = clock[0]
        clock[0] += 5.0
        automatic.observe(1, None, start)
    assert automatic.steps == 1
