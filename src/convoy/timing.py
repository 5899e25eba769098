"""Times of repeated runs."""

import time
from collections.abc import Callable

import jax
from convoy.types import PyTree


def run_seconds(
    run: Callable[[], PyTree], *, runs: int, seconds: float, min_runs: int = 1
) -> list[float]:
    """Return the time of each of several runs, until the devices have finished it.

    Args:
        run: function that is run, and that was compiled before.
        runs: maximum number of runs.
        seconds: total time after which no further run begins.
        min_runs: number of runs that is made in any case.
    """
    found: list[float] = []
    while len(found) < min_runs or (len(found) < runs and sum(found) < seconds):
        start = time.perf_counter()
        jax.block_until_ready(run())
        found.append(time.perf_counter() - start)
    return found
