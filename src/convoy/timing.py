"""Times of repeated runs, and of compilations."""

import functools
import time
from collections.abc import Callable

import jax
from convoy.types import PyTree

# JAX's names of the parts of a compilation.
_COMPILATION = {
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
}


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


def compilation_seconds(since: float) -> float:
    """Return the time in which JAX has traced, lowered and compiled programs.

    Args:
        since: beginning, a time of `time.perf_counter`. Only compilations after the first call of
            this function count.
    """
    seconds, counted_until = 0.0, since
    # Traces contain others: each moment counts once.
    for begin, end in sorted(_compilations()):
        seconds += max(0.0, end - max(begin, counted_until))
        counted_until = max(counted_until, end)
    return seconds


def execution_seconds(since: float, until: float) -> float:
    """Return the time between two moments, without compilation; see `compilation_seconds`."""
    return max(1e-9, until - since - compilation_seconds(since))


@functools.cache
def _compilations() -> list[tuple[float, float]]:
    """Return a list that grows with the begin and end of each part of a compilation."""
    parts: list[tuple[float, float]] = []

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        if event in _COMPILATION:
            end = time.perf_counter()
            parts.append((end - duration_secs, end))

    jax.monitoring.register_event_duration_secs_listener(note)
    return parts
