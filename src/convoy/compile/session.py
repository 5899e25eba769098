"""Compilation of everything that a run would execute, and the verdict about it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import jax
from convoy import compile_only
from convoy.compile.advice import advise
from convoy.compile.analysis import CompiledProgram
from convoy.compile.console import Console
from convoy.compile.failures import TooLarge
from convoy.compile.observer import CompilingObserver
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
        advice: changes after which the run should fit, if it does not.
    """

    target: Target
    hosts: int
    programs: list[CompiledProgram]
    rejected: TooLarge | None = None
    advice: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        too_large = [p for p in self.programs if p.total_bytes > self.target.memory]
        return self.rejected is None and not too_large


def compile_run(
    target: Target, opened: CompileTarget, run: Callable[[], None], console: Console
) -> CompileResult:
    """Compile the programs of a run for a target.

    Args:
        target: the target.
        opened: its devices.
        run: function that makes strategies and models, and calls `fit` or the like. Instead of
            running, they compile.
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
    result = CompileResult(target, hosts, observer.programs, rejected)
    if result.fits:
        return result
    if rejected is not None:
        advice = advise(*rejected.shortage, rejected.state, rejected.run)
    else:
        largest = max(observer.programs, key=lambda program: program.total_bytes)
        state = largest.memory["alias"]
        advice = advise(largest.total_bytes, target.memory, state, largest.run)
    return CompileResult(target, hosts, observer.programs, rejected, advice)


@contextlib.contextmanager
def _without_cache() -> Iterator[None]:
    """Let JAX compile every program in the block, even one that it finds in its cache."""
    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
