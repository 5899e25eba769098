import pytest
from convoy.engine import steps_per_execution
from convoy.engine.steps_per_execution import StepsPerExecution


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests move by hand."""
    now = [0.0]
    monkeypatch.setattr(steps_per_execution.time, "perf_counter", lambda: now[0])
    return now


def test_a_fixed_number_stays():
    fixed = StepsPerExecution(7)
    assert not fixed.automatic
    assert fixed.value == fixed.steps_per_block == 7


def test_an_automatic_number_starts_with_single_steps():
    assert StepsPerExecution("auto").value == 1


def test_the_first_call_is_not_counted_because_it_compiles(clock):
    automatic = StepsPerExecution("auto")
    clock[0] = 60.0
    automatic.adapt(1, [], 0.0)
    assert automatic.value == 1


def test_fast_steps_lead_to_longer_calls_that_stay_below_a_second(clock):
    automatic = StepsPerExecution("auto")
    seconds_per_step = 0.001
    longest = 0.0
    for _ in range(10):
        start, steps = clock[0], automatic.value
        clock[0] += steps * seconds_per_step
        longest = max(longest, clock[0] - start)
        automatic.adapt(steps, [], start)
    assert automatic.value == pytest.approx(
        steps_per_execution.TARGET_SECONDS / seconds_per_step, rel=0.01
    )
    assert longest < 1


def test_slow_steps_are_run_one_by_one(clock):
    automatic = StepsPerExecution("auto")
    for _ in range(3):
        start = clock[0]
        clock[0] += 5.0
        automatic.adapt(1, [], start)
    assert automatic.value == 1
