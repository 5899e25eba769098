"""What the operations of a compiled program cost: floating-point work, and bytes they move."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import asdict, dataclass
from math import prod

from convoy.report.hlo import Instruction, Program
from convoy.report.layers import where

# Operations on every element of our kernels' largest array.
_KERNELS = {
    "convoy_moments": 4,
    "convoy_affine": 2,
    "convoy_gradient_sums": 4,
    "convoy_input_gradient": 4,
    "convoy_max_pool": 1,
    "convoy_sum_pool": 1,
    "convoy_max_pool_gradient": 1,
}
# These only name, reorder or hand on.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "call",
    "conditional",
    "after-all",
    "opt-barrier",
    "partition-id",
    "replica-id",
}
# These read no more of their first operand than they return.
_PICKING = {"gather", "dynamic-slice", "slice"}
_MOVING = {
    "copy",
    "broadcast",
    "reshape",
    "transpose",
    "slice",
    "concatenate",
    "pad",
    "gather",
    "scatter",
    "dynamic-slice",
    "dynamic-update-slice",
    "iota",
    "reverse",
    "convert",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "rng-bit-generator",
    "select",
    "compare",
}
LISTED = 200
"""So many rows of a program are kept: the dearest ones."""


@dataclass
class Row:
    """What operations of one kind cost in one pass through one layer, in a step.

    Attributes:
        layer: the path of the Keras layer; empty for what belongs to none.
        part: `"forward"`, `"backward"`, `"update"` or `"other"`.
        kind: of the operation.
        count: how many of them a step runs.
        flops: floating-point operations.
        bytes: what is read and written.
    """

    layer: str
    part: str
    kind: str
    count: int = 0
    flops: float = 0.0
    bytes: float = 0.0


class Costs:
    """The costs of one program.

    A loop counts as often as it is run, if that is known before; the device loop counts once, so
    figures are those of one step.

    Args:
        program: what is run.
        trains: whether it is of training.
    """

    def __init__(self, program: Program, *, trains: bool) -> None:
        self.program = program
        rows: dict[tuple[str, str, str], Row] = {}
        for computation, times in program.walk():
            shapes = {i.name: i for i in program.computations.get(computation, ())}
            for instruction in shapes.values():
                if instruction.opcode in _FREE:
                    continue
                layer, part = where(instruction.path, trains=trains)
                kind = self._kind(instruction)
                row = rows.setdefault((layer, part, kind), Row(layer, part, kind))
                row.count += times
                row.flops += times * self._flops(instruction, shapes)
                row.bytes += times * self._moved(instruction, shapes)
        self.rows = sorted(rows.values(), key=lambda row: (-row.flops, -row.bytes))

    @property
    def flops(self) -> float:
        return sum(row.flops for row in self.rows)

    @property
    def bytes(self) -> float:
        return sum(row.bytes for row in self.rows)

    def by_part(self) -> dict[str, float]:
        """Return the floating-point work of each pass."""
        found: dict[str, float] = defaultdict(float)
        for row in self.rows:
            found[row.part] += row.flops
        return dict(found)

    def listed(self) -> list[dict[str, object]]:
        """Return the dearest rows, and all others as one."""
        rows = [asdict(row) for row in self.rows[:LISTED]]
        if rest := self.rows[LISTED:]:
            total = Row("", "", f"{len(rest)} other rows")
            for row in rest:
                total.count += row.count
                total.flops += row.flops
                total.bytes += row.bytes
            rows.append(asdict(total))
        return rows

    def _kind(self, instruction: Instruction) -> str:
        if instruction.opcode == "custom-call":
            return instruction.target.removeprefix("convoy_").replace("_", " ")
        if instruction.opcode != "fusion":
            return instruction.opcode
        for inner in self._inside(instruction):
            if inner.opcode in ("dot", "convolution", "reduce", "gather", "scatter"):
                return f"fusion with {inner.opcode}"
        return "fusion"

    def _moved(self, instruction: Instruction, shapes: dict[str, Instruction]) -> int:
        """Return the bytes that an operation reads and writes."""
        total = instruction.bytes
        inside = self._inside(instruction) if instruction.opcode == "fusion" else []
        parameters = [inner for inner in inside if inner.opcode == "parameter"]
        for place, name in enumerate(instruction.operands):
            if name not in shapes:
                continue
            readers = [instruction]
            if parameters:
                own = parameters[place].name
                readers = [inner for inner in inside if own in inner.operands[:1]]
                if any(own in inner.operands[1:] for inner in inside):
                    readers = []
            whole, picked = shapes[name].bytes, _picked(readers)
            total += whole if picked is None else min(whole, picked)
        return total

    def _inside(self, instruction: Instruction) -> list[Instruction]:
        return [i for name in instruction.called for i in self.program.computations.get(name, ())]

    def _flops(self, instruction: Instruction, shapes: dict[str, Instruction]) -> float:
        opcode = instruction.opcode
        if opcode == "fusion":
            inside = self._inside(instruction)
            own = {i.name: i for i in inside}
            return sum(self._flops(i, own) for i in inside)
        if opcode == "custom-call":
            return _kernel_flops(instruction, shapes)
        if opcode == "dot":
            return 2.0 * instruction.elements * _contracted(instruction, shapes)
        if opcode == "convolution":
            return 2.0 * instruction.elements * window(instruction, shapes)
        if opcode in ("reduce", "reduce-window", "select-and-scatter"):
            first = shapes.get(instruction.operands[0])
            return float(first.elements if first else instruction.elements)
        if opcode in _FREE or opcode in _MOVING:
            return 0.0
        return float(instruction.elements)


def _picked(readers: list[Instruction]) -> int | None:
    """Return the bytes of an array that its readers look at, if they pick some of it."""
    if not readers or any(reader.opcode not in _PICKING for reader in readers):
        return None
    return sum(reader.bytes for reader in readers)


def description(instruction: Instruction) -> list[int]:
    """Return the numbers by which our kernels are told of a convolution; none if it is not one."""
    found = re.search(r"description = dense<\[([^\]]*)\]>", instruction.attributes)
    return [int(number) for number in found[1].split(",")] if found else []


def convolution_flops(numbers: list[int]) -> float:
    """Return the multiplications and additions of a convolution, whichever of its three kinds."""
    rank, grouped = numbers[2], numbers[3]
    axes = rank + 2
    source, weights = numbers[4 : 4 + axes], numbers[4 + 2 * axes : 4 + 3 * axes + grouped]
    first = 4 + 4 * axes + 2 * grouped
    out = numbers[first : first + axes]
    return 2.0 * source[0] * prod(out[2:]) * prod(weights)


def _kernel_flops(instruction: Instruction, shapes: dict[str, Instruction]) -> float:
    numbers = description(instruction)
    if instruction.target in ("convoy_convolution", "convoy_fused_convolution") and numbers:
        return convolution_flops(numbers)
    sizes = [shapes[name].elements for name in instruction.operands if name in shapes]
    return float(_KERNELS.get(instruction.target, 0) * max(sizes, default=0))


def _contracted(instruction: Instruction, shapes: dict[str, Instruction]) -> int:
    found = re.search(r"lhs_contracting_dims=\{([0-9,]*)\}", instruction.attributes)
    left = shapes.get(instruction.operands[0])
    if not found or left is None:
        return 1
    return prod(left.results[0].dims[int(axis)] for axis in found[1].split(",") if axis)


def window(instruction: Instruction, shapes: dict[str, Instruction]) -> int:
    """Return how many products are summed for each element of a convolution."""
    labels = re.search(r"dim_labels=\w+_(\w+)->", instruction.attributes)
    kernel = shapes.get(instruction.operands[1])
    if not labels or kernel is None:
        return 1
    dims = zip(labels[1], kernel.results[0].dims, strict=True)
    return prod(size for label, size in dims if label != "o")
