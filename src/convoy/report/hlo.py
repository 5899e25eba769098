"""Parser of XLA's text form of a compiled program: computations, instructions and their layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

_BYTES = {"pred": 1, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"([a-z]+[0-9a-z]*)\[([0-9,<=]*)\]")
_HEAD = re.compile(r"^(ENTRY )?%(\S+) \(")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%(\S+) = ")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition)=%([^\s,}]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")

ALIASES = {
    "bitcast", "call", "conditional", "get-tuple-element", "opt-barrier", "tuple", "while",
}  # fmt: skip
"""Instructions whose results alias their operands."""


@dataclass(frozen=True)
class Array:
    """The element type and the dimensions of an array."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.dims)

    @property
    def bytes(self) -> int:
        return self.elements * _size(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        name: its name, unique in the program.
        opcode: the operation.
        results: the resulting arrays; several for a tuple.
        operands: the names of the operands.
        attributes: the text after the operands.
        is_root: whether its result is the result of the computation.
        value: the text of a constant.
    """

    name: str
    opcode: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool
    value: str = ""

    @property
    def bytes(self) -> int:
        return sum(result.bytes for result in self.results)

    @property
    def elements(self) -> int:
        return sum(result.elements for result in self.results)

    @cached_property
    def path(self) -> str:
        """JAX's nested names of its origin, separated by slashes."""
        return self.attribute(r'op_name="([^"]*)"')

    @property
    def target(self) -> str:
        """The target of a custom call."""
        return self.attribute(r'custom_call_target="([^"]*)"')

    def attribute(self, pattern: str) -> str:
        """Return the part of the attributes that the group of a pattern matches, if any."""
        found = re.search(pattern, self.attributes)
        return found[1] if found else ""

    @property
    def called(self) -> list[str]:
        """The names of the computations that it calls."""
        names = _CALLED.findall(self.attributes)
        for branches in _BRANCHES.findall(self.attributes):
            names += re.findall(r"%([^\s,}]+)", branches)
        return names

    @property
    def trips(self) -> int | None:
        """The number of iterations of a loop, if XLA has noted it."""
        found = self.attribute(r'"known_trip_count":\{"n":"(\d+)"\}')
        return int(found) if found else None


Instructions = dict[str, Instruction]
"""Instructions by name."""


def by_name(instructions: Iterable[Instruction]) -> Instructions:
    return {instruction.name: instruction for instruction in instructions}


@dataclass(frozen=True)
class Program:
    """A program: its computations by name, and the name of the entry computation."""

    computations: dict[str, list[Instruction]]
    entry: str

    @classmethod
    def parse(cls, text: str) -> Program:
        """Parse the text that `jax.stages.Compiled.as_text` returns."""
        computations: dict[str, list[Instruction]] = {}
        entry, current = "", None
        for line in text.splitlines():
            if head := _HEAD.match(line):
                current = computations.setdefault(head[2], [])
                if head[1]:
                    entry = head[2]
            elif line.startswith("}"):
                current = None
            elif current is not None and (found := _INSTRUCTION.match(line)):
                current.append(_instruction(found, line[found.end() :]))
        return cls(computations, entry)

    def called_by(self, instruction: Instruction) -> list[Instruction]:
        """Return the instructions of the computations that an instruction calls."""
        return [i for name in instruction.called for i in self.computations.get(name, ())]

    def trips(self, loop: Instruction) -> int:
        """Return the number of iterations of a loop; 1 if it is unknown at compile time.

        Without XLA's note, as on TPUs, it is the constant that a counter from 0 stays below.
        """
        if loop.opcode != "while" or loop.trips is not None:
            return loop.trips or 1
        condition = loop.attribute(r"condition=%([^\s,}]+)")
        instructions = by_name(self.computations.get(condition or "", ()))
        ends = [i for i in instructions.values() if i.is_root and i.opcode == "compare"]
        if not ends or "direction=LT" not in ends[0].attributes:
            return 1
        limit = instructions.get(ends[0].operands[-1])
        return int(limit.value) if limit is not None and limit.value.isdigit() else 1

    def executed(self) -> Iterator[tuple[Instruction, Instructions, int]]:
        """Yield each separate instruction, all of its computation, and its number of runs."""
        for computation, times in self.walk():
            beside = by_name(self.computations.get(computation, ()))
            for instruction in beside.values():
                yield instruction, beside, times

    def walk(
        self, computation: str | None = None, times: int = 1, *, into_fusions: bool = False
    ) -> Iterator[tuple[str, int]]:
        """Yield the computations that run on their own, and the number of their runs.

        Computations that a fusion or a reduction calls are part of it, unless `into_fusions`.
        """
        name = self.entry if computation is None else computation
        yield name, times
        for instruction in self.computations.get(name, ()):
            if into_fusions or instruction.opcode in ("while", "call", "conditional"):
                for called in instruction.called:
                    runs = times * self.trips(instruction)
                    yield from self.walk(called, runs, into_fusions=into_fusions)


def _instruction(found: re.Match[str], rest: str) -> Instruction:
    shape, rest = _until_balanced(rest) if rest.startswith("(") else rest.split(" ", 1)
    rest = rest.lstrip()
    opcode, _, _ = rest.partition("(")
    operands, attributes = _until_balanced(rest[len(opcode) :])
    results = tuple(
        Array(dtype, tuple(int(size.strip("<=")) for size in dims.split(",") if size))
        for dtype, dims in _ARRAY.findall(shape)
    )
    names = () if opcode in ("parameter", "constant") else re.findall(r"%([^\s,)]+)", operands)
    value = operands[1:-1] if opcode == "constant" else ""
    return Instruction(found[2], opcode, results, tuple(names), attributes, bool(found[1]), value)


def _until_balanced(text: str) -> tuple[str, str]:
    """Split a text after the bracket that closes the first one."""
    depth = 0
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return text[: match.end()], text[match.end() :]
    return text, ""


def _size(dtype: str) -> int:
    if dtype in _BYTES:
        return _BYTES[dtype]
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits[0]) // 8) if bits else 0


# Names in the path of an operation that are not layers.
_NOT_A_LAYER = re.compile(
    r"^(jit\(.*\)|pjit|while|body|cond|branch_\d+_fun|closed_call|custom_jvp_call.*|"
    r"custom_vjp_call.*|checkpoint|activation_checkpointing\d*|rematted_computation|shmap_body|shard_map|jvp|"
    r"transpose|vmap|core_call|_run_whole|run_steps|_forward|_backward.*|compute)$"
)
_WRAPPED = re.compile(r"\b(transpose|jvp|vmap|rematted_computation|checkpoint)\(")


def find_layer(path: str, *, trains: bool) -> tuple[str, str]:
    """Return the layer of an operation, and the pass.

    Args:
        path: as in `jit(run_steps)/while/body/transpose(jvp(stem))/conv_general_dilated`.
        trains: whether the program computes gradients. If so, operations outside both passes are
            part of the weight update.

    Returns:
        The layer's path, empty if the operation belongs to none; and `"forward"`, `"backward"`,
        `"update"` (of the weights), or `"other"` (the loop, its data, metrics).
    """
    plain = _WRAPPED.sub("", path).replace(")", "")
    plain = re.sub(r"\bjit\(", "jit:", plain)
    names = [name for name in plain.split("/")[:-1] if not _is_no_layer(name)]
    if "transpose(" in path:
        part = "backward"
    elif "jvp(" in path or (names and not trains):
        part = "forward"
    else:
        part = "update" if names else "other"
    return "/".join(dict.fromkeys(names)), part


def _is_no_layer(name: str) -> bool:
    return not name or name.startswith("jit:") or bool(_NOT_A_LAYER.match(name))
