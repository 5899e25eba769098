"""Analysis of a program compiled for a target: memory, floating-point operations, communication."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import jax
import keras
from convoy.engine.chunk_runner import ModelRunner
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import Mode
from convoy.jaxpr import count_flops, nested_jaxprs
from convoy.report.hlo import Instruction, Program
from convoy.report.memory_timeline import by_kind
from convoy.types import Json, PyTree
from jax.extend.core import Jaxpr


class ObservedRun:
    """One call of `fit`, `evaluate` or the like.

    Attributes:
        name: the name of the method.
        model: the model.
        config: the configuration of the run.
        batch: samples of a micro-batch, over all replicas; known after the first device call.
        data_bytes: bytes of the data of that call on each device that reads it.
        runners: runners of the model that were used, by mode.
    """

    def __init__(self, name: str, model: keras.Model, config: ExecutionConfig) -> None:
        self.name, self.model, self.config = name, model, config
        self.batch = self.data_bytes = 0
        self.runners: dict[Mode, ModelRunner] = {}


COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_HOST = {"infeed", "outfeed"}
_HOST_CALL = re.compile("callback|host", re.IGNORECASE)
# XLA for TPUs divides an operation that overlaps with computation into several fusions: one that
# starts it, those that it overlaps with, and one that ends it.
_CHAIN = re.compile(r'chain_id="(\d+)"')


@dataclass(frozen=True)
class Collective:
    """Operations of one kind between devices, in one weight update or call.

    Attributes:
        kind: the kind of operation, in XLA's words.
        count: number of operations.
        bytes: bytes of their results on one device.
    """

    kind: str
    count: int
    bytes: int


@dataclass(frozen=True)
class CompiledProgram:
    """One program, compiled for the target.

    Attributes:
        name: the name of the program.
        run: the run that needs it.
        devices: number of devices that run it together.
        lower_seconds: time in which it was traced and lowered.
        compile_seconds: time in which it was compiled.
        memory: bytes on one device by kind: `argument`, `output`, `alias` (results in the memory of
            arguments), `temp` and `generated_code`.
        donated: bytes of arguments that are donated to the program.
        donated_arrays: number of these arguments.
        aliased_arrays: number of arguments whose memory holds a result.
        flops: floating-point operations of one weight update or call on one device.
        collectives: communication of one weight update or call.
        host_calls: operations that involve the host.
        custom_calls: number of calls of library functions and kernels, by name.
        convolution_types: number of convolutions by the type of their operands.
    """

    name: str
    run: ObservedRun
    devices: int
    lower_seconds: float
    compile_seconds: float
    memory: dict[str, int]
    donated: int
    donated_arrays: int
    aliased_arrays: int
    flops: float
    collectives: list[Collective]
    host_calls: list[str]
    custom_calls: dict[str, int] = field(default_factory=dict)
    convolution_types: dict[str, int] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Memory that a device needs to run the program."""
        memory = self.memory
        added = memory["argument"] + memory["output"] + memory["temp"] + memory["generated_code"]
        return added - memory["alias"]


def analyze(
    name: str,
    run: ObservedRun,
    traced: jax.stages.Traced,
    arguments: PyTree,
    compiled: jax.stages.Compiled,
    seconds: tuple[float, float],
) -> CompiledProgram:
    """Return the analysis of a compiled program.

    Args:
        name: the name of the program.
        run: the run that needs it.
        traced: the program before it was lowered.
        arguments: its arguments without values.
        compiled: the compiled program.
        seconds: durations of lowering and of compilation.
    """
    text = compiled.as_text() or ""
    program = Program.parse(text)
    shardings = jax.tree.leaves(compiled.output_shardings)
    devices = len(shardings[0].device_set) if shardings else 1
    instructions = all_instructions(program)
    return CompiledProgram(
        name=name,
        run=run,
        devices=devices,
        lower_seconds=seconds[0],
        compile_seconds=seconds[1],
        memory=by_kind(compiled.memory_analysis()),
        donated=donated_bytes(traced, arguments),
        donated_arrays=sum(info.donated for info in jax.tree.leaves(traced.args_info)),
        aliased_arrays=_aliased_arrays(text),
        flops=count_flops(traced.jaxpr, devices) or _flops_of_xla(compiled),
        collectives=find_collectives(instructions),
        host_calls=find_host_calls(instructions),
        custom_calls=_custom_calls(instructions),
        convolution_types=dict(_convolution_types(traced.jaxpr.jaxpr)),
    )


def all_instructions(program: Program) -> list[tuple[Instruction, int]]:
    """Return each instruction with its number of runs, including those inside fusions."""
    return [
        (instruction, times)
        for name, times in program.walk(into_fusions=True)
        for instruction in _scattered(name, program.computations.get(name, ()))
    ]


def _scattered(name: str, instructions: Sequence[Instruction]) -> Sequence[Instruction]:
    """Return the instructions of a computation, with a TPU's fused reduce-scatter named.

    XLA for TPUs represents it as a fusion of an all-reduce and the slice that a device keeps.
    """
    if not name.startswith("all-reduce-scatter"):
        return instructions
    (kept,) = (instruction.results for instruction in instructions if instruction.is_root)
    return [
        replace(instruction, opcode="reduce-scatter", results=kept)
        if instruction.opcode == "all-reduce"
        else instruction
        for instruction in instructions
    ]


def find_collectives(instructions: list[tuple[Instruction, int]]) -> list[Collective]:
    """Return the communication between devices.

    An asynchronous operation is counted where it starts.
    """
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    chains: set[tuple[str, str]] = set()
    for instruction, times in instructions:
        kind = instruction.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            if chain := _CHAIN.search(instruction.attributes):
                if (kind, chain[1]) in chains:
                    continue
                chains.add((kind, chain[1]))
            counts[kind] += times
            # The result of an asynchronous gather or permute begins with its operands.
            is_pair = instruction.opcode.endswith("-start") and kind != "all-reduce"
            arrays, count = instruction.results, len(instruction.operands)
            own = arrays[count : 2 * count] if is_pair else arrays
            sizes[kind] += times * sum(array.bytes for array in own)
    return [Collective(kind, counts[kind], sizes[kind]) for kind in COLLECTIVES if counts[kind]]


def find_host_calls(instructions: list[tuple[Instruction, int]]) -> list[str]:
    found = []
    for instruction, _ in instructions:
        is_transfer = "is_host_transfer=true" in instruction.attributes
        target = instruction.target if instruction.opcode == "custom-call" else ""
        if instruction.opcode in _HOST or is_transfer or _HOST_CALL.search(target):
            found.append(target or instruction.opcode)
    return found


def _custom_calls(instructions: list[tuple[Instruction, int]]) -> dict[str, int]:
    calls = [instruction for instruction, _ in instructions if instruction.opcode == "custom-call"]
    return dict(Counter(call.target for call in calls))


def donated_bytes(traced: jax.stages.Traced, arguments: PyTree) -> int:
    """Return the bytes on one device of the arguments that are donated to a program."""
    is_donated = [info.donated for info in jax.tree.leaves(traced.args_info)]
    pairs = zip(jax.tree.leaves(arguments), is_donated, strict=True)
    return argument_bytes([leaf for leaf, donated in pairs if donated])


def argument_bytes(arguments: PyTree) -> int:
    """Return the bytes of arguments on one device."""
    return sum(
        prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(arguments)
    )


def _flops_of_xla(compiled: jax.stages.Compiled) -> float:
    """Return XLA's own count, for an exported program, which has no JAX equations to count."""
    return float((compiled.cost_analysis() or {}).get("flops", 0))


def _aliased_arrays(text: str) -> int:
    """Return the number of results that alias arguments, from the first line of a program."""
    return len(re.findall(r"(?:may|must)-alias", text.partition("\n")[0]))


def _convolution_types(jaxpr: Jaxpr) -> Counter[str]:
    counts: Counter[str] = Counter()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":
            counts[str(equation.invars[0].aval.dtype)] += 1  # type: ignore[attr-defined]
        for inner in nested_jaxprs(equation):
            counts += _convolution_types(inner)
    return counts


def to_json(program: CompiledProgram) -> Json:
    """Return the analysis as a document."""
    return {
        "name": program.name,
        "method": program.run.name,
        "devices": program.devices,
        "seconds": {"lower": program.lower_seconds, "compile": program.compile_seconds},
        "memory": program.memory | {"total": program.total_bytes},
        "donated": program.donated,
        "donated_arrays": program.donated_arrays,
        "aliased_arrays": program.aliased_arrays,
        "flops": program.flops,
        "collectives": [vars(collective) for collective in program.collectives],
        "host_calls": program.host_calls,
        "custom_calls": program.custom_calls,
        "convolution_types": program.convolution_types,
    }
