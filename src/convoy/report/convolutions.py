"""Which kernel runs each convolution of a compiled program."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from convoy.cpu import library
from convoy.report.hlo import Instruction, Program
from convoy.report.layers import where
from convoy.report.operations import convolution_flops, description, window

_KINDS = ("forward", "gradient of the input", "gradient of the weights", "inference")
_TARGETS = ("convoy_convolution", "convoy_fused_convolution")


def convolutions(program: Program) -> list[dict[str, Any]]:
    """Return the convolutions of a program, in the order in which it runs them.

    Each has its layer, which of a convolution's three kinds it is, whose kernel runs it
    (`"oneDNN"`, one of our own, or `"XLA"`) and the kernel's own name, its operands and result, its
    floating-point work, and how often a step runs it.
    """
    found = []
    for computation, times in program.walk():
        shapes = {i.name: i for i in program.computations.get(computation, ())}
        for instruction in shapes.values():
            for one, names in _within(program, instruction, shapes):
                found.append(_describe(one, names) | {"count": times})
    return found


def _within(
    program: Program, instruction: Instruction, shapes: dict[str, Instruction]
) -> list[tuple[Instruction, dict[str, Instruction]]]:
    """Return an instruction if it is a convolution, or those in a fusion that are."""
    if instruction.opcode == "convolution" or instruction.target in _TARGETS:
        return [(instruction, shapes)]
    if instruction.opcode != "fusion":
        return []
    inside = {i.name: i for name in instruction.called for i in program.computations.get(name, ())}
    return [(i, inside) for i in inside.values() if i.opcode == "convolution"]


def _describe(instruction: Instruction, shapes: dict[str, Instruction]) -> dict[str, Any]:
    layer, part = where(instruction.path, trains=True)
    operands = [shapes[name] for name in instruction.operands[:2] if name in shapes]
    numbers = description(instruction)
    if numbers:
        implementation = _implementation(instruction, numbers)
        kind, kernel = _KINDS[numbers[0]], library.kernel_family(implementation)
        flops = convolution_flops(numbers)
    else:
        implementation = ""
        kind, kernel = "gradient" if part == "backward" else "forward", "XLA"
        flops = 2.0 * instruction.elements * window(instruction, shapes)
    return {
        "layer": layer,
        "kind": kind,
        "kernel": kernel,
        "implementation": implementation,
        "operands": [str(operand.results[0]) for operand in operands if operand.results],
        "result": str(instruction.results[0]),
        "flops": flops,
    }


def _implementation(instruction: Instruction, numbers: list[int]) -> str:
    """Ask the library what it computes a convolution with."""
    kernels = library.find()
    found = re.search(r"threads = (\d+) : i64", instruction.attributes)
    if kernels is None or found is None:
        return ""
    return kernels.implementation(np.array(numbers, np.int64), int(found[1])) or ""
