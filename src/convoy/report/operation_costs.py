"""The costs of a compiled program's operations: floating-point operations and memory traffic."""

from collections import defaultdict
from dataclasses import asdict, dataclass
from math import prod

from convoy.report.hlo import ALIASES, Instruction, Instructions, Program, by_name, find_layer

# Floating-point operations per element of the largest operand, by kernel of `convoy.cpu`.
_KERNELS = {
    "convoy_moments": 4,
    "convoy_affine": 2,
    "convoy_gradient_sums": 4,
    "convoy_input_gradient": 4,
    "convoy_max_pool": 1,
    "convoy_sum_pool": 1,
    "convoy_max_pool_gradient": 1,
    "convoy_channel_sums": 1,
}
# Instructions without cost: they only name or pass on values.
_FREE = ALIASES | {"parameter", "constant", "after-all", "partition-id", "replica-id"}
# Instructions that read only as much of their first operand as they return.
_PICKING = {"gather", "dynamic-slice", "slice"}
# Instructions without floating-point operations.
_MOVING = _PICKING | {
    "all-gather", "all-reduce", "broadcast", "collective-permute", "compare", "concatenate",
    "convert", "copy", "dynamic-update-slice", "iota", "pad", "reduce-scatter", "reshape",
    "reverse", "rng-bit-generator", "scatter", "select", "transpose",
}  # fmt: skip
# Number of rows that are kept, the most expensive ones.
MAX_ROWS = 200


@dataclass
class Row:
    """The costs per step of all operations of one kind in one pass of one layer.

    Attributes:
        layer: the path of the Keras layer; empty if there is none.
        part: the pass: `"forward"`, `"backward"`, `"update"` or `"other"`.
        kind: the kind of operation.
        count: number of operations per step.
        flops: floating-point operations.
        bytes: bytes that are read and written.
    """

    layer: str
    part: str
    kind: str
    count: int = 0
    flops: float = 0.0
    bytes: float = 0.0


class Costs:
    """The costs of one step of a program.

    A loop with a known number of iterations is counted that many times. The device loop is counted
    once.

    Args:
        program: the program.
        trains: whether it is a training program.
    """

    def __init__(self, program: Program, *, trains: bool) -> None:
        self.program, self.trains = program, trains
        rows: dict[tuple[str, str, str], Row] = {}
        for instruction, shapes, times in program.executed():
            if instruction.opcode in _FREE:
                continue
            one = self.of(instruction, shapes)
            key = (one.layer, one.part, one.kind)
            row = rows.setdefault(key, Row(*key))
            row.count += times
            row.flops += times * one.flops
            row.bytes += times * one.bytes
        self.rows = sorted(rows.values(), key=lambda row: (-row.flops, -row.bytes))

    def of(self, instruction: Instruction, shapes: Instructions) -> Row:
        """Return the costs of one run of an instruction.

        Args:
            instruction: the instruction.
            shapes: the instructions of its computation.
        """
        layer, part = find_layer(instruction.path, trains=self.trains)
        flops, moved = self._flops(instruction, shapes), self._moved(instruction, shapes)
        return Row(layer, part, self._kind(instruction), 1, flops, moved)

    @property
    def flops(self) -> float:
        return sum(row.flops for row in self.rows)

    @property
    def bytes(self) -> float:
        return sum(row.bytes for row in self.rows)

    def by_part(self) -> dict[str, float]:
        """Return the floating-point operations of each pass."""
        found: dict[str, float] = defaultdict(float)
        for row in self.rows:
            found[row.part] += row.flops
        return dict(found)

    def listed(self) -> list[dict[str, object]]:
        """Return the most expensive rows, and the sum of all others as one row."""
        rows = [asdict(row) for row in self.rows[:MAX_ROWS]]
        if others := self.rows[MAX_ROWS:]:
            total = Row("", "", f"{len(others)} other rows")
            for row in others:
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
        for inner in self.program.called_by(instruction):
            if inner.opcode in ("dot", "convolution", "reduce", "gather", "scatter"):
                return f"fusion with {inner.opcode}"
        return "fusion"

    def _moved(self, instruction: Instruction, shapes: Instructions) -> int:
        """Return the bytes that an operation reads and writes."""
        total = instruction.bytes
        inside = self.program.called_by(instruction) if instruction.opcode == "fusion" else []
        parameters = [inner for inner in inside if inner.opcode == "parameter"]
        for place, name in enumerate(instruction.operands):
            if name not in shapes:
                continue
            # Inside a fusion, the readers of an operand are those of the parameter for it.
            readers = [instruction]
            if parameters:
                own = parameters[place].name
                readers = [inner for inner in inside if own in inner.operands[:1]]
                if any(own in inner.operands[1:] for inner in inside):
                    readers = []
            size, picked = shapes[name].bytes, _picked(readers)
            total += size if picked is None else min(size, picked)
        return total

    def _flops(self, instruction: Instruction, shapes: Instructions) -> float:
        opcode = instruction.opcode
        if opcode == "fusion":
            inside = by_name(self.program.called_by(instruction))
            return sum(self._flops(inner, inside) for inner in inside.values())
        if opcode == "custom-call":
            return _kernel_flops(instruction, shapes)
        if opcode == "dot":
            return 2.0 * instruction.elements * _contracted(instruction, shapes)
        if opcode == "convolution":
            return 2.0 * instruction.elements * window_size(instruction, shapes)
        if opcode in ("reduce", "reduce-window", "select-and-scatter"):
            first = shapes.get(instruction.operands[0])
            return float(first.elements if first else instruction.elements)
        if opcode in _FREE or opcode in _MOVING:
            return 0.0
        return float(instruction.elements)


def _picked(readers: list[Instruction]) -> int | None:
    """Return the bytes of an array that its readers read, if all of them read only a part."""
    if not readers or any(reader.opcode not in _PICKING for reader in readers):
        return None
    return sum(reader.bytes for reader in readers)


def kernel_description(instruction: Instruction) -> list[int]:
    """Return the numbers that describe an operation to the CPU kernels; none for other calls."""
    numbers = instruction.attribute(r"description = dense<\[([^\]]*)\]>")
    return [int(number) for number in numbers.split(",") if number]


def convolution_flops(numbers: list[int]) -> float:
    """Return the multiplications and additions of a forward convolution or a gradient."""
    rank, grouped = numbers[2], numbers[3]
    axes = rank + 2
    source, weights = numbers[4 : 4 + axes], numbers[4 + 2 * axes : 4 + 3 * axes + grouped]
    first = 4 + 4 * axes + 2 * grouped
    out = numbers[first : first + axes]
    return 2.0 * source[0] * prod(out[2:]) * prod(weights)


def _kernel_flops(instruction: Instruction, shapes: Instructions) -> float:
    numbers = kernel_description(instruction)
    if instruction.target in ("convoy_convolution", "convoy_inference_convolution") and numbers:
        return convolution_flops(numbers)
    if instruction.target == "convoy_matrix_product":
        # Behind the type: the sizes of the batch, of the result, and of the sum.
        return 2.0 * prod(numbers[1:6])
    sizes = [shapes[name].elements for name in instruction.operands if name in shapes]
    return float(_KERNELS.get(instruction.target, 0) * max(sizes, default=0))


def _contracted(instruction: Instruction, shapes: Instructions) -> int:
    axes = instruction.attribute(r"lhs_contracting_dims=\{([0-9,]*)\}")
    left = shapes.get(instruction.operands[0])
    if left is None:
        return 1
    return prod(left.results[0].dims[int(axis)] for axis in axes.split(",") if axis)


def window_size(instruction: Instruction, shapes: Instructions) -> int:
    """Return the number of products that are summed for each element of a convolution."""
    labels = instruction.attribute(r"dim_labels=\w+_(\w+)->")
    kernel = shapes.get(instruction.operands[1])
    if not labels or kernel is None:
        return 1
    dims = zip(labels, kernel.results[0].dims, strict=True)
    return prod(size for label, size in dims if label != "o")
