"""The kernels that run the convolutions of a compiled program."""

from typing import Any

import numpy as np
from convoy.cpu import library
from convoy.report.hlo import Instruction, Instructions, Program, by_name, find_layer
from convoy.report.operation_costs import convolution_flops, kernel_description, window_size

_KINDS = ("forward", "gradient of the input", "gradient of the weights", "inference")
_TARGETS = ("convoy_convolution", "convoy_inference_convolution")


def convolutions(program: Program) -> list[dict[str, Any]]:
    """Return the convolutions of a program, in the order of execution.

    Each entry has the layer, the kind (forward pass or one of the gradients), the library of its
    kernel (`"oneDNN"`, `"convoy"` or `"XLA"`), the kernel's name, the types of its operands and
    result, its floating-point operations, and the number of runs per step.
    """
    found = []
    for instruction, shapes, times in program.executed():
        candidates = {instruction.name: instruction}
        if instruction.opcode == "fusion":
            candidates = shapes = by_name(program.called_by(instruction))
        for one in candidates.values():
            if one.opcode == "convolution" or one.target in _TARGETS:
                found.append(_describe(one, shapes) | {"count": times})
    return found


def _describe(instruction: Instruction, shapes: Instructions) -> dict[str, Any]:
    layer, part = find_layer(instruction.path, trains=True)
    operands = [shapes[name] for name in instruction.operands[:2] if name in shapes]
    numbers = kernel_description(instruction)
    if numbers:
        implementation = _implementation(instruction, numbers)
        kind, kernel = _KINDS[numbers[0]], library.kernel_family(implementation)
        flops = convolution_flops(numbers)
    else:
        implementation = ""
        kind, kernel = "gradient" if part == "backward" else "forward", "XLA"
        flops = 2.0 * instruction.elements * window_size(instruction, shapes)
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
    """Return the name of the kernel that oneDNN selects for a convolution."""
    kernels = library.find()
    threads = instruction.attribute(r"threads = (\d+) : i64")
    if kernels is None or not threads:
        return ""
    return kernels.implementation(np.array(numbers, np.int64), int(threads)) or ""
