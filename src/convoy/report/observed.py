"""Wrappers of programs, runners and feeds that report what they do to a recording."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import jax
from convoy.engine.data.chunks import Chunk, Feed
from convoy.report.event_log import EventLog
from convoy.types import Json

OnCompiled = Callable[[Json, jax.stages.Compiled, float], int]
"""Takes name and times of a compilation, the program, and the begin; returns the program's id."""

_CACHE_HIT = "/jax/compilation_cache/cache_hits"


@dataclass(eq=False)
class ObservedProgram:
    """A jitted function that reports its compilations and calls.

    It compiles the function ahead of the first call. JAX caches the result under the same key, so
    the call does not compile again.

    Attributes:
        name: the name of the program.
        program: the function that `jax.jit` returned.
        varying: the argument whose shapes may differ from call to call, if there is one.
        on_compiled: function that is called after each compilation.
        on_called: function that is called with the program's number before each call.
    """

    name: str
    program: Any
    varying: int | None
    on_compiled: OnCompiled
    on_called: Callable[[int], None]
    _numbers: dict[tuple, int] = field(default_factory=dict)

    def __call__(self, *arguments: Any) -> Any:
        key: tuple = ()
        if self.varying is not None:
            key = tuple(leaf.shape for leaf in jax.tree.leaves(arguments[self.varying]))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._compile(arguments)
        self.on_called(number)
        return self.program(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)

    def _compile(self, arguments: tuple) -> int:
        hits = len(_cache_hits())
        times = [time.perf_counter()]
        traced = self.program.trace(*arguments)
        times.append(time.perf_counter())
        lowered = traced.lower()
        times.append(time.perf_counter())
        compiled = lowered.compile()
        times.append(time.perf_counter())
        phases = zip(("trace", "lower", "compile"), pairwise(times), strict=True)
        seconds = {phase: after - before for phase, (before, after) in phases}
        about = {"name": self.name, "seconds": seconds, "cached": len(_cache_hits()) > hits}
        return self.on_compiled(about, compiled, times[0])


@functools.cache
def _cache_hits() -> list[str]:
    """Return a list that grows with each program that JAX finds in its cache on disk."""
    hits: list[str] = []
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(event) if event == _CACHE_HIT else None
    )
    return hits


class ObservedFeed:
    """A feed that logs the times of its calls."""

    def __init__(self, feed: Feed, log: EventLog) -> None:
        self._feed, self._log = feed, log

    def next(self, max_steps: int) -> Chunk | None:
        with self._log.timed("input"):
            return self._feed.next(max_steps)

    def prefetch(self, max_steps: int) -> None:
        with self._log.timed("prefetch"):
            self._feed.prefetch(max_steps)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)
