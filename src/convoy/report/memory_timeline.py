"""The memory of a compiled program on a device: by kind, and after each operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from convoy.report.hlo import Instruction, Program
from convoy.report.layer_names import find_layer

# Their results alias their operands.
_ALIASES = {"bitcast", "get-tuple-element", "tuple", "while", "opt-barrier", "conditional", "call"}
# Their result may reuse the buffer of an operand that is not read afterwards.
_IN_PLACE = {"fusion", "copy", "add", "multiply", "subtract", "dynamic-update-slice", "scatter"}
# Not if each element of the result depends on several elements of the operand.
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


class MemoryTimeline:
    """The bytes of temporary arrays after each operation.

    It follows XLA's schedule through the computation with the highest peak, usually the body of the
    device loop. Arguments and results exist all the time, and are not included.
    """

    def __init__(self, program: Program, *, trains: bool) -> None:
        self.trains = trains
        names = {name for name, _ in program.walk()}
        timelines = [_simulate(program, name) for name in sorted(names)]
        self.points, self.instructions, self.live = max(
            timelines, key=lambda timeline: max(timeline[0], default=0), default=([], [], [])
        )

    def to_json(self) -> dict[str, Any]:
        """Return the downsampled timeline, and the arrays at its peak."""
        if not self.points:
            return {"points": [], "peak": 0, "at_peak": []}
        top = max(range(len(self.points)), key=self.points.__getitem__)
        rows = []
        for place in _downsampled(self.points):
            layer, part = find_layer(self.instructions[place].path, trains=self.trains)
            operation = _operation(self.instructions[place])
            rows.append([place, self.points[place], layer, part, operation])
        at_peak = sorted(self.live[top], key=lambda i: -i.bytes)[:MAX_ARRAYS]
        return {
            "operations": len(self.points),
            "points": rows,
            "peak": self.points[top],
            "at_peak": [_named(i, trains=self.trains) for i in at_peak],
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
    by_name = {i.name: i for i in instructions}
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
        dying = [by_name[name] for name in ends.get(place, ()) if name in live]
        if instruction.name in owners[instruction.name] and instruction.name in last:
            live[instruction.name] = instruction.bytes
            total += instruction.bytes
            if _in_place(program, instruction):
                shared = next((d for d in dying if d.bytes == instruction.bytes), None)
                if shared is not None:
                    total -= live.pop(shared.name)
        if instruction.opcode not in _ALIASES | {"parameter", "constant"}:
            points.append(total)
            kept.append(instruction)
            live_arrays.append([by_name[name] for name in live] if total > highest else [])
            highest = max(highest, total)
        for array in dying:
            total -= live.pop(array.name, 0)
    return points, kept, live_arrays


def _in_place(program: Program, instruction: Instruction) -> bool:
    if instruction.opcode not in _IN_PLACE:
        return False
    inside = (i for name in instruction.called for i in program.computations.get(name, ()))
    return not any(i.opcode in _GATHERING for i in inside)


def _owners(instruction: Instruction, owners: dict[str, set[str]]) -> set[str]:
    """Return the owners of the result's buffers: the instruction itself, or aliased operands."""
    if instruction.opcode in ("parameter", "constant"):
        return set()
    if instruction.opcode in _ALIASES:
        return {owner for name in instruction.operands for owner in owners.get(name, ())}
    return {instruction.name}


def _downsampled(points: list[int]) -> Iterable[int]:
    """Return the places of the points to keep: the highest of each group."""
    width = -(-len(points) // MAX_POINTS)
    for start in range(0, len(points), width):
        yield max(range(start, min(start + width, len(points))), key=points.__getitem__)


def _operation(instruction: Instruction) -> str:
    name = instruction.target.removeprefix("convoy_") or instruction.path.rpartition("/")[2]
    return name or instruction.opcode


def _named(instruction: Instruction, *, trains: bool) -> dict[str, Any]:
    layer, part = find_layer(instruction.path, trains=trains)
    shape = str(instruction.results[0]) if instruction.results else ""
    named = {"layer": layer, "part": part, "operation": _operation(instruction)}
    return named | {"shape": shape, "bytes": instruction.bytes}
