"""Costs of a network from its training program, compiled for a target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from convoy.compile.session import CompileResult
from convoy.compile.targets import Target
from convoy.plan.predict import ParallelConfiguration, Predictor
from convoy.plan.profile import Profile
from convoy.plan.search import search

# Maximum number of configurations that are compiled.
MAX_COMPILED = 3

Memory = dict[ParallelConfiguration, float]
"""Bytes of configurations."""


@dataclass(frozen=True)
class CompiledStep:
    """Memory and floating-point operations of a configuration's compiled training program.

    Attributes:
        configuration: the configuration.
        memory: bytes on the device that needs the most.
        temporary: the part of these bytes that grows with the micro-batch; 0 for stages.
        flops: floating-point operations for one micro-batch on a device; 0 if they are not known.
    """

    configuration: ParallelConfiguration
    memory: float
    temporary: float = 0.0
    flops: float = 0.0


def compiled_step(
    configuration: ParallelConfiguration, gradient_accumulation: int, result: CompileResult
) -> CompiledStep:
    """Return the memory and the floating-point operations of a compiled configuration.

    Args:
        configuration: the configuration.
        gradient_accumulation: micro-batches per weight update in the compiled program.
        result: its programs.
    """
    if result.rejected is not None:
        need = result.rejected.demand.need
        return CompiledStep(configuration, need.total, need.total - need.fixed)
    if result.stages:
        return CompiledStep(configuration, max(stage.total_bytes for stage in result.stages))
    program = max(result.programs, key=lambda program: program.flops)  # the training step
    return CompiledStep(
        configuration,
        program.total_bytes,
        program.memory["temp"],
        program.flops / gradient_accumulation,
    )


def with_compiled(estimated: Profile, steps: Sequence[CompiledStep], target: Target) -> Profile:
    """Return a profile with the memory and operations of compiled programs instead of estimates.

    The time of a micro-batch is estimated from its layers. The compiled floating-point operations
    at the device's peak speed are a lower bound.

    Args:
        estimated: profile that was estimated for the same network.
        steps: compiled configurations; only those without stages count here.
        target: the devices.
    """
    plain = sorted(
        (step for step in steps if _is_plain(step.configuration)),
        key=lambda step: step.configuration.micro_batch,
    )
    if not plain:
        return estimated
    largest = plain[-1]
    samples = largest.configuration.micro_batch
    work = max(step.flops / step.configuration.micro_batch for step in plain) / target.flops
    sizes = ", ".join(str(step.configuration.micro_batch) for step in plain)
    return replace(
        estimated,
        step_times=tuple((size, max(time, size * work)) for size, time in estimated.step_times),
        held_share=largest.temporary / (samples * sum(estimated.activations)),
        compiled_memory=tuple((step.configuration.micro_batch, step.memory) for step in plain),
        source=f"memory and work compiled for {target.name}, micro-batches of {sizes}; times "
        f"estimated from {target.flops / 1e12:.0f} TFLOP/s and {target.bandwidth / 1e9:,.0f} GB/s",
    )


def _is_plain(configuration: ParallelConfiguration) -> bool:
    return configuration.stages == 1 and not configuration.activation_checkpointing


def search_compiled(
    make_predictor: Callable[[Profile, Memory], Predictor],
    estimated: Profile,
    target: Target,
    global_batch: int,
    best: int | None,
    compile_one: Callable[[Predictor, ParallelConfiguration], CompiledStep],
) -> tuple[Profile, list[CompiledStep]]:
    """Search for the best configuration and compile it, and repeat until the best one is compiled.

    Args:
        make_predictor: function that returns the predictor for a profile and for the bytes of
            configurations.
        estimated: estimated profile.
        target: the devices.
        global_batch: samples per weight update.
        best: number of predictions that are needed.
        compile_one: function that compiles a configuration.

    Returns:
        The profile with the compiled values, and the compiled configurations.
    """
    steps: list[CompiledStep] = []
    while True:
        profile = with_compiled(estimated, steps, target)
        known = {step.configuration: step.memory for step in steps}
        predictor = make_predictor(profile, known)
        found = search(predictor, global_batch, best)
        is_known = found.best and found.best[0].configuration in known
        if not found.best or is_known or len(steps) == MAX_COMPILED:
            return profile, steps
        steps.append(compile_one(predictor, found.best[0].configuration))
