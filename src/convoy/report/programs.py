"""What a compiled program is, by XLA's own analyses of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
from convoy.report import memory
from convoy.report.convolutions import convolutions
from convoy.report.files import Json
from convoy.report.hlo import Program
from convoy.report.operations import Costs

Compiled = Callable[[Json, Any, float], int]
"""Takes what is known, the compiled program, and when that began; returns its number."""

_HIT = "/jax/compilation_cache/cache_hits"
_counts: dict[str, int] = {}


class ObservedProgram:
    """Is called in the place of a jitted function, and compiles it by itself the first time.

    What it compiles is what the function runs: JAX keeps it under the same key.

    Args:
        name: of what it computes.
        program: as `jax.jit` returns it.
        varying: the argument whose shapes may differ from call to call, if one may.
        compiled: is told of every compilation.
        called: is told the number of the program before each call.
    """

    def __init__(
        self,
        name: str,
        program: Any,
        varying: int | None,
        compiled: Compiled,
        called: Callable[[int], None],
    ) -> None:
        self.name, self.program, self.varying = name, program, varying
        self._compiled, self._called = compiled, called
        self._numbers: dict[tuple, int] = {}

    def __call__(self, *arguments: Any) -> Any:
        key: tuple = ()
        if self.varying is not None:
            key = tuple(leaf.shape for leaf in jax.tree.leaves(arguments[self.varying]))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._compile(arguments)
        self._called(number)
        return self.program(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)

    def _compile(self, arguments: tuple) -> int:
        hits = _cache_hits()
        moments = [time.perf_counter()]
        traced = self.program.trace(*arguments)
        moments.append(time.perf_counter())
        lowered = traced.lower()
        moments.append(time.perf_counter())
        compiled = lowered.compile()
        moments.append(time.perf_counter())
        phases = ("trace", "lower", "compile")
        seconds = {
            phase: after - before
            for phase, before, after in zip(phases, moments, moments[1:], strict=False)
        }
        about = {"name": self.name, "seconds": seconds, "cached": _cache_hits() > hits}
        return self._compiled(about, compiled, moments[0])


def _cache_hits() -> int:
    """Return how many programs JAX has found in its cache on disk, since it was first asked."""
    if not _counts:
        _counts[_HIT] = 0
        jax.monitoring.register_event_listener(_count)
    return _counts[_HIT]


def _count(event: str, **_: Any) -> None:
    if event == _HIT:
        _counts[_HIT] += 1


def mode_of(name: str) -> str:
    """Return the mode that a program of such a name is of."""
    words = name.replace(",", "").split()
    return next((mode for mode in ("evaluate", "predict") if mode in words), "train")


def describe(name: str, compiled: Any) -> Json:
    """Return what XLA says about a compiled program, and what its operations cost.

    Args:
        name: of the program.
        compiled: a `jax.stages.Compiled`.
    """
    program = Program.parse(compiled.as_text())
    trains = mode_of(name) == "train"
    costs = Costs(program, trains=trains)
    return {
        "memory": memory.by_kind(compiled.memory_analysis()),
        "memory_course": memory.Course(program, trains=trains).to_json(),
        "flops": costs.flops,
        "bytes": costs.bytes,
        "flops_by_part": costs.by_part(),
        "xla_cost": _xla_cost(compiled),
        "operations": costs.listed(),
        "convolutions": convolutions(program),
    }


def _xla_cost(compiled: Any) -> dict[str, float]:
    """Return XLA's own totals: of one step, without what happens inside of custom calls."""
    found = compiled.cost_analysis() or {}
    names = ("flops", "transcendentals", "bytes accessed")
    return {name.replace(" ", "_"): float(found[name]) for name in names if name in found}
