"""Compilation of all programs of a run, and the check whether they fit."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import jax
from convoy import compile_only
from convoy.compile.analysis import CompiledProgram, ObservedRun
from convoy.compile.console import Console
from convoy.compile.failures import TooLarge, advise
from convoy.compile.observer import CompilingObserver
from convoy.compile.stage_memory import StageMemory, stage_memory
from convoy.compile.targets import Target
from convoy.compile.toolchain import compiler_options
from convoy.compile_only import CompileTarget
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
        sizes = [program.total_bytes for program in self.programs]
        sizes += [stage.total_bytes for stage in self.stages]
        return self.rejected is None and max(sizes, default=0) <= self.target.memory


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
    observer = CompilingObserver(console.timed, compiler_options(target.platform))
    rejected: TooLarge | None = None
    try:
        with compile_only.use(opened), observed_by_default(observer), _without_cache():
            run()
    except TooLarge as error:
        rejected = error
    stages = [s for made in observer.runs for s in stage_memory(made, observer.programs)]
    result = CompileResult(target, hosts, observer.programs, rejected, stages)
    return result if result.fits else replace(result, advice=_advice(result, observer.runs))


def _advice(result: CompileResult, runs: list[ObservedRun]) -> list[str]:
    """Return advice about the part that takes most memory."""
    if result.rejected is not None:
        return advise(*result.rejected.shortage, result.rejected.state, result.rejected.run)
    available = result.target.memory
    if result.stages:
        device = max(result.stages, key=lambda stage: stage.total_bytes)
        trains = next(run for run in runs if "train" in run.runners)
        return advise(device.total_bytes, available, device.state, trains)
    largest = max(result.programs, key=lambda program: program.total_bytes)
    return advise(largest.total_bytes, available, largest.memory["alias"], largest.run)


@contextlib.contextmanager
def _without_cache() -> Iterator[None]:
    """Make JAX compile every program in the block, even if it is in the compilation cache."""
    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
