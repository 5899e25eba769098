"""Compilation of all programs of a run, and the check whether they fit."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import jax
from convoy import compile_target
from convoy.compile.advice import Demand, MemoryNeed, advise
from convoy.compile.analysis import CompiledProgram
from convoy.compile.console import Console
from convoy.compile.failures import TooLarge
from convoy.compile.observer import TargetObserver
from convoy.compile.stage_memory import StageMemory, stage_memory
from convoy.compile.targets import Target
from convoy.compile.toolchain import compiler_options
from convoy.compile_target import CompileTarget
from convoy.engine.observer import observed_by_default


@dataclass(frozen=True)
class CompileResult:
    """The programs of a run, compiled for a target.

    Attributes:
        target: the target.
        hosts: number of hosts of the target.
        programs: the programs that were compiled.
        rejected: the program that the compiler has rejected because it is too large, if any.
        stages: memory of the devices of a pipeline that trains.
        advice: changes after which the run should fit, if it does not.
    """

    target: Target
    hosts: int
    programs: list[CompiledProgram]
    rejected: TooLarge | None = None
    stages: list[StageMemory] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        largest = self.largest
        return largest is None or (
            self.rejected is None and largest.need.total <= largest.available
        )

    @property
    def largest(self) -> Demand | None:
        """What takes most memory: the rejected program, another one, or a device of a pipeline."""
        if self.rejected is not None:
            return self.rejected.demand
        found = []
        for program in self.programs:
            need = MemoryNeed(
                program.total_bytes, program.memory["alias"], program.memory["argument"]
            )
            found.append(Demand(program.name, need, self.target.memory, program.run))
        for stage in self.stages:
            need = MemoryNeed(stage.total_bytes, stage.state, stage.state + stage.data + stage.code)
            run = next(program.run for program in self.programs if program.run.name == "fit")
            name = f"device {stage.device} of the pipeline"
            found.append(Demand(name, need, self.target.memory, run))
        return max(found, key=lambda demand: demand.need.total, default=None)


def compile_run(
    target: Target, opened: CompileTarget, run: Callable[[], None], console: Console
) -> CompileResult:
    """Compile the programs of a run for a target.

    Args:
        target: the target.
        opened: its devices.
        run: function that creates strategies and models, and calls `fit` or similar methods. Their
            programs are compiled instead of run.
        console: destination of progress.
    """
    hosts = len({device.process_index for device in opened.devices})
    observer = TargetObserver(console.timed, compiler_options(target.platform))
    rejected: TooLarge | None = None
    try:
        with compile_target.use(opened), observed_by_default(observer), _without_cache():
            run()
    except TooLarge as error:
        rejected = error
    stages = [s for made in observer.runs for s in stage_memory(made, observer.programs)]
    result = CompileResult(target, hosts, observer.programs, rejected, stages)
    largest = result.largest
    if largest is None or result.fits:
        return result
    return replace(result, advice=advise(largest, target.devices))


@contextlib.contextmanager
def _without_cache() -> Iterator[None]:
    """Make JAX compile every program in the block, even if it is in the compilation cache."""
    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
