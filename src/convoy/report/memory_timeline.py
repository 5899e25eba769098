"""The memory of a compiled program on a device: by kind, and after each operation."""

from collections.abc import Iterable
from typing import Any

from convoy.report.hlo import ALIASES, Instruction, Program, by_name, find_layer
from convoy.types import Json

# Instructions whose result may reuse the buffer of an operand that is not read afterwards.
_IN_PLACE = {"fusion", "copy", "add", "multiply", "subtract", "dynamic-update-slice", "scatter"}
# Instructions in which each result element depends on several operand elements. A fusion that
# contains one cannot reuse a buffer.
_GATHERING = {"dot", "convolution", "reduce", "gather", "transpose", "broadcast", "reverse"}
# Maximum number of points of the timeline, and of arrays that are listed at the peak.
MAX_POINTS = 2000
MAX_ARRAYS = 12


def by_kind(analysis: Any) -> dict[str, int]:
    """Return XLA's memory analysis, in bytes per device.

    Args:
        analysis: the result of `jax.stages.Compiled.memory_analysis`.
    """
    names = ("argument", "output", "alias", "temp", "generated_code")
    found = {name: int(getattr(analysis, f"{name}_size_in_bytes", 0)) for name in names}
    found["peak"] = int(getattr(analysis, "peak_memory_in_bytes", 0))
    return found


def memory_timeline(program: Program, *, trains: bool) -> Json:
    """Return the bytes of temporary arrays after each operation, and the arrays at the peak.

    The timeline follows XLA's schedule through the computation with the highest peak, usually the
    body of the device loop. Arguments and results exist all the time, and are not included.
    """
    names = {name for name, _ in program.walk()}
    timelines = [_simulate(program, name) for name in sorted(names)]
    points, instructions, live = max(
        timelines, key=lambda timeline: max(timeline[0], default=0), default=([], [], [])
    )
    if not points:
        return {"points": [], "peak": 0, "at_peak": []}
    top = max(range(len(points)), key=points.__getitem__)
    rows = [
        [place, points[place], *_origin(instructions[place], trains=trains).values()]
        for place in _downsampled(points)
    ]
    at_peak = sorted(live[top], key=lambda instruction: -instruction.bytes)[:MAX_ARRAYS]
    return {
        "operations": len(points),
        "points": rows,
        "peak": points[top],
        "at_peak": [
            _origin(array, trains=trains)
            | {"shape": next(map(str, array.results), ""), "bytes": array.bytes}
            for array in at_peak
        ],
    }


def _simulate(
    program: Program, computation: str
) -> tuple[list[int], list[Instruction], list[list[Instruction]]]:
    """Allocate and free the arrays of a computation in the order of its instructions.

    Returns:
        For each operation, the bytes after it, the instruction, and the live arrays if the total is
        the highest so far.
    """
    instructions = program.computations.get(computation, [])
    # The buffers of each result: its own, or those of the operands that it aliases.
    owners: dict[str, set[str]] = {}
    named = by_name(instructions)
    # The place of the last instruction that reads each buffer.
    last: dict[str, int] = {}
    for place, instruction in enumerate(instructions):
        owners[instruction.name] = _owners(instruction, owners)
        read = {owner for name in instruction.operands for owner in owners.get(name, ())}
        if instruction.is_root:
            read |= owners[instruction.name]
        for owner in read:
            last[owner] = place
    ends: dict[int, list[str]] = {}
    for name, place in last.items():
        ends.setdefault(place, []).append(name)
    live: dict[str, int] = {}
    points: list[int] = []
    kept: list[Instruction] = []
    live_arrays: list[list[Instruction]] = []
    total = highest = 0
    for place, instruction in enumerate(instructions):
        dying = [named[name] for name in ends.get(place, ()) if name in live]
        if instruction.name in owners[instruction.name] and instruction.name in last:
            live[instruction.name] = instruction.bytes
            total += instruction.bytes
            if _in_place(program, instruction):
                shared = next((d for d in dying if d.bytes == instruction.bytes), None)
                if shared is not None:
                    total -= live.pop(shared.name)
        if instruction.opcode not in ALIASES | {"parameter", "constant"}:
            points.append(total)
            kept.append(instruction)
            live_arrays.append([named[name] for name in live] if total > highest else [])
            highest = max(highest, total)
        for array in dying:
            total -= live.pop(array.name, 0)
    return points, kept, live_arrays


def _in_place(program: Program, instruction: Instruction) -> bool:
    if instruction.opcode not in _IN_PLACE:
        return False
    return not any(inner.opcode in _GATHERING for inner in program.called_by(instruction))


def _owners(instruction: Instruction, owners: dict[str, set[str]]) -> set[str]:
    """Return the owners of the result's buffers: the instruction itself, or aliased operands."""
    if instruction.opcode in ("parameter", "constant"):
        return set()
    if instruction.opcode in ALIASES:
        return {owner for name in instruction.operands for owner in owners.get(name, ())}
    return {instruction.name}


def _downsampled(points: list[int]) -> Iterable[int]:
    """Return the places of the points to keep: the highest of each group."""
    width = -(-len(points) // MAX_POINTS)
    for start in range(0, len(points), width):
        yield max(range(start, min(start + width, len(points))), key=points.__getitem__)


def _origin(instruction: Instruction, *, trains: bool) -> dict[str, str]:
    layer, part = find_layer(instruction.path, trains=trains)
    operation = instruction.target.removeprefix("convoy_") or instruction.path.rpartition("/")[2]
    return {"layer": layer, "part": part, "operation": operation or instruction.opcode}
