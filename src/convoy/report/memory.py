"""What a compiled program takes of a device's memory: by kind, and over operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from convoy.report.hlo import Instruction, Program
from convoy.report.layers import where

# Their results are other arrays under a new name.
_ALIASES = {"bitcast", "get-tuple-element", "tuple", "while", "opt-barrier", "conditional", "call"}
# Their result may take the place of an operand that nobody reads afterwards.
_IN_PLACE = {"fusion", "copy", "add", "multiply", "subtract", "dynamic-update-slice", "scatter"}
# But not if each element of it is made from several.
_GATHERING = {"dot", "convolution", "reduce", "gather", "transpose", "broadcast", "reverse"}
POINTS = 2000
"""So many points of the course are kept."""
NAMED = 12
"""So many arrays that are there at the peak are named."""


def by_kind(analysis: Any) -> dict[str, int]:
    """Return XLA's own figures, in bytes on each device.

    Args:
        analysis: what `jax.stages.Compiled.memory_analysis` returns.
    """
    names = ("argument", "output", "alias", "temp", "generated_code")
    found = {name: int(getattr(analysis, f"{name}_size_in_bytes", 0)) for name in names}
    found["peak"] = int(getattr(analysis, "peak_memory_in_bytes", 0))
    return found


class Course:
    """The bytes of temporary arrays that are there after each operation.

    Follows XLA's schedule through the computation that holds most, the body of the device loop as a
    rule. Arguments and results, which are there all the time, are not part of it.
    """

    def __init__(self, program: Program, *, trains: bool) -> None:
        self.trains = trains
        names = {name for name, _ in program.walk()}
        courses = [_follow(program, name) for name in sorted(names)]
        self.points, self.instructions, self.held = max(
            courses, key=lambda course: max(course[0], default=0), default=([], [], [])
        )

    def to_json(self) -> dict[str, Any]:
        """Return the course, thinned out but for its peak, and what is there at the peak."""
        if not self.points:
            return {"points": [], "peak": 0, "at_peak": []}
        top = max(range(len(self.points)), key=self.points.__getitem__)
        rows = []
        for place in _thinned(self.points):
            layer, part = where(self.instructions[place].path, trains=self.trains)
            operation = _operation(self.instructions[place])
            rows.append([place, self.points[place], layer, part, operation])
        at_peak = sorted(self.held[top], key=lambda i: -i.bytes)[:NAMED]
        return {
            "operations": len(self.points),
            "points": rows,
            "peak": self.points[top],
            "at_peak": [_named(i, trains=self.trains) for i in at_peak],
        }


def _follow(
    program: Program, computation: str
) -> tuple[list[int], list[Instruction], list[list[Instruction]]]:
    """Return the bytes after each operation of a computation, and at the peak the arrays."""
    instructions = program.computations.get(computation, [])
    owners: dict[str, set[str]] = {}
    by_name = {i.name: i for i in instructions}
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
    held: list[list[Instruction]] = []
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
            held.append([by_name[name] for name in live] if total > highest else [])
            highest = max(highest, total)
        for array in dying:
            total -= live.pop(array.name, 0)
    return points, kept, held


def _in_place(program: Program, instruction: Instruction) -> bool:
    if instruction.opcode not in _IN_PLACE:
        return False
    inside = (i for name in instruction.called for i in program.computations.get(name, ()))
    return not any(i.opcode in _GATHERING for i in inside)


def _owners(instruction: Instruction, owners: dict[str, set[str]]) -> set[str]:
    """Return whose memory an instruction's result is: its own, or that of what it names anew."""
    if instruction.opcode in ("parameter", "constant"):
        return set()
    if instruction.opcode in _ALIASES:
        return {owner for name in instruction.operands for owner in owners.get(name, ())}
    return {instruction.name}


def _thinned(points: list[int]) -> Iterable[int]:
    """Return which points to keep: of every group, the highest."""
    width = -(-len(points) // POINTS)
    for start in range(0, len(points), width):
        yield max(range(start, min(start + width, len(points))), key=points.__getitem__)


def _operation(instruction: Instruction) -> str:
    name = instruction.target.removeprefix("convoy_") or instruction.path.rpartition("/")[2]
    return name or instruction.opcode


def _named(instruction: Instruction, *, trains: bool) -> dict[str, Any]:
    layer, part = where(instruction.path, trains=trains)
    shape = str(instruction.results[0]) if instruction.results else ""
    named = {"layer": layer, "part": part, "operation": _operation(instruction)}
    return named | {"shape": shape, "bytes": instruction.bytes}
