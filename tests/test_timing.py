"""Times of repeated runs, and of compilations."""

import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from convoy import timing


@pytest.fixture
def runs(monkeypatch):
    """A function that takes a second by its own clock, and counts its runs."""
    clock = [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def run():
        run.count += 1
        clock[0] += 1.0
        return jnp.zeros(3)

    run.count = 0
    return run


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"runs": 4, "seconds": 100.0}, 4),
        ({"runs": 10, "seconds": 2.5}, 3),
        ({"runs": 10, "seconds": 0.0, "min_runs": 5}, 5),
        ({"runs": 2, "seconds": 100.0, "min_runs": 3}, 3),
    ],
)
def test_runs_end_by_their_number_or_their_time(runs, limits, count):
    assert timing.run_seconds(runs, **limits) == [1.0] * count
    assert runs.count == count


def test_compilations_count_from_a_moment_on_and_each_moment_once(monkeypatch):
    # Two traces, one inside of the other, and a compilation, from the second 1 on.
    parts = [(2.0, 3.0), (1.5, 4.0), (4.0, 6.0), (0.0, 0.5)]
    monkeypatch.setattr(timing, "_compilations", lambda: parts)
    assert timing.compilation_seconds(since=1.0) == 4.5
    assert timing.compilation_seconds(since=5.0) == 1.0
    assert timing.compilation_seconds(since=6.0) == 0.0


def test_a_program_that_is_compiled_counts():
    began = time.perf_counter()
    timing.compilation_seconds(began)
    program = jax.jit(lambda x: jnp.sin(x) * 3)
    program(jnp.ones(7))
    first = timing.compilation_seconds(began)
    assert 0 < first < time.perf_counter() - began
    program(jnp.ones(7))
    assert timing.compilation_seconds(began) == first


def test_the_time_of_an_execution_is_without_compilation(monkeypatch):
    monkeypatch.setattr(timing, "_compilations", lambda: [(1.0, 3.0), (2.0, 4.0)])
    assert timing.execution_seconds(0.0, 10.0) == 7.0
    assert timing.execution_seconds(3.5, 10.0) == 6.0
