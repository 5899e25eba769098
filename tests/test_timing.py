"""Times of repeated runs."""

from types import SimpleNamespace

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
