"""Results of compiling for a target, as text and as JSON."""

from collections.abc import Sequence

import jax
from convoy.compile.analysis import CompiledProgram, to_json
from convoy.compile.session import CompileResult
from convoy.compile.stage_memory import StageMemory
from convoy.compile.targets import GPU_SHARE, Target
from convoy.types import Json
from convoy.units import format_bytes, format_count, format_seconds, format_table, format_value


def heading(target: Target, hosts: int) -> str:
    """Return a line about the target."""
    share = f", {GPU_SHARE:.0%} of its memory" if target.platform == "gpu" else ""
    return (
        f"{target.name}: {format_count(target.devices, 'device')} on "
        f"{format_count(hosts, 'host')}, {format_bytes(target.memory)} each{share} "
        f"(jax {jax.__version__})"
    )


def describe(program: CompiledProgram, target: Target) -> str:
    """Return the lines about one program."""
    memory = program.memory
    per = "weight update" if program.run.name == "fit" and "train" in program.name else "call"
    new = memory["output"] - memory["alias"]
    kinds = {
        "state": memory["alias"],
        "other arguments": memory["argument"] - memory["alias"],
        "new results": new,
        "temporary": memory["temp"],
        "program": memory["generated_code"],
    }
    shown = ", ".join(f"{name} {format_bytes(size)}" for name, size in kinds.items() if size > 0)
    total = program.total_bytes
    rows = [
        (
            "memory",
            f"{format_bytes(total)} of {format_bytes(target.memory)} on each device "
            f"({total / target.memory:.1%})",
        ),
        ("", shown),
        ("work", _work(program, target, per)),
        ("collectives", _collectives(program, per)),
        ("host calls", ", ".join(program.host_calls) or "none"),
        (
            "compiled in",
            f"{format_seconds(program.compile_seconds)} (traced and lowered in "
            f"{format_seconds(program.lower_seconds)})",
        ),
    ]
    title = f"{program.name} ({program.run.name}), on {format_count(program.devices, 'device')}"
    return "\n".join([title, *(f"  {line}" for line in format_table(rows))])


def _work(program: CompiledProgram, target: Target, per: str) -> str:
    if not program.flops:
        return "not known: XLA does not count that of an exported program for this device"
    least = format_seconds(program.flops / target.flops)
    return (
        f"{format_value(program.flops, 'flops')} per {per} and device: at least {least} at "
        f"{format_value(target.flops, 'flops per second')}"
    )


def _collectives(program: CompiledProgram, per: str) -> str:
    if not program.collectives:
        return "none"
    parts = [f"{c.count} {c.kind} of {format_bytes(c.bytes)}" for c in program.collectives]
    return f"{', '.join(parts)} per {per}"


def verdict(result: CompileResult) -> str:
    """Return whether everything fits, as text, with suggestions if it does not."""
    largest = result.largest
    if largest is None:
        return "Nothing was compiled."
    used = (
        f"{largest.name} takes {format_bytes(largest.need.total)} of "
        f"{format_bytes(largest.available)} on a device"
    )
    if result.fits:
        return f"Fits: {used}."
    advice = "".join(f"\n  - {line}" for line in result.advice)
    return f"Does not fit: {used}. Changes that should make it fit:{advice}"


def describe_stages(stages: Sequence[StageMemory], target: Target) -> str:
    """Return a table of the memory of a pipeline's devices."""
    rows = [["device", "stages", "state", "data", "residuals", "working", "code", "total", ""]]
    for stage in stages:
        sizes = stage.state, stage.data, stage.residuals, stage.working, stage.code
        numbers = ", ".join(map(str, stage.stages))
        share = f"{stage.total_bytes / target.memory:.1%}"
        total = format_bytes(stage.total_bytes)
        rows.append([str(stage.device), numbers, *map(format_bytes, sizes), total, share])
    return "\n".join(["memory of each device of the pipeline", *format_table(rows, str.rjust)])


def document(result: CompileResult) -> Json:
    """Return everything as one document."""
    target, rejected = result.target, result.rejected and result.rejected.demand
    return {
        "target": {
            "name": target.name,
            "devices": target.devices,
            "hosts": result.hosts,
            "memory": target.memory,
            "flops": target.flops,
        },
        "jax": jax.__version__,
        "fits": result.fits,
        "advice": result.advice,
        "rejected": rejected
        and {
            "name": rejected.name,
            "needed": rejected.need.total,
            "available": rejected.available,
        },
        "stages": [vars(stage) | {"total": stage.total_bytes} for stage in result.stages],
        "programs": [to_json(program) for program in result.programs],
    }
