"""Analysis of a compiled program: memory, costs of operations, and convolution kernels."""

from typing import Any

import jax
from convoy.report.convolution_kernels import convolutions
from convoy.report.hlo import Program
from convoy.report.memory_timeline import by_kind, memory_timeline
from convoy.report.operation_costs import Costs
from convoy.types import Json


def mode_of(name: str) -> str:
    """Return the mode of a program by its name."""
    words = name.replace(",", "").split()
    return next((mode for mode in ("evaluate", "predict") if mode in words), "train")


def analyze(name: str, compiled: jax.stages.Compiled) -> Json:
    """Return the analysis of a compiled program.

    Args:
        name: the name of the program.
        compiled: the program.
    """
    program = Program.parse(compiled.as_text() or "")
    trains = mode_of(name) == "train"
    costs = Costs(program, trains=trains)
    return {
        "memory": by_kind(compiled.memory_analysis()),
        "memory_course": memory_timeline(program, trains=trains),
        "flops": costs.flops,
        "bytes": costs.bytes,
        "flops_by_part": costs.by_part(),
        "xla_cost": _xla_cost(compiled),
        "operations": costs.listed(),
        "convolutions": convolutions(program),
    }


def _xla_cost(compiled: jax.stages.Compiled) -> dict[str, float]:
    """Return XLA's totals for one step, which do not include custom calls."""
    found: Any = compiled.cost_analysis() or {}
    names = ("flops", "transcendentals", "bytes accessed")
    return {name.replace(" ", "_"): float(found[name]) for name in names if name in found}
