"""An observer that compiles the programs of runs for the target instead of running them."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
import keras
import numpy as np
from convoy import compile_only
from convoy.compile.advice import Demand, MemoryNeed
from convoy.compile.analysis import (
    CompiledProgram,
    ObservedRun,
    analyze,
    argument_bytes,
    donated_bytes,
)
from convoy.compile.failures import TooLarge, find_shortage
from convoy.compile.toolchain import compiler_output_hidden
from convoy.engine.chunk_runner import ChunkRunner, FunctionRunner, ModelRunner, Outcome
from convoy.engine.data.chunks import Chunk, Feed
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import EpochCallbacks, Observer
from convoy.engine.state import Mode
from convoy.train.compile_only import FirstChunk
from convoy.types import Logs, PyTree
from jax.sharding import NamedSharding, PartitionSpec, Sharding

Timed = Callable[[str], AbstractContextManager[None]]


class CompilingObserver(Observer):
    """Compiles each program of a run at its first call, and returns abstract arrays as its results.

    A run makes one device call of each kind: training ends after its first epoch, and an epoch ends
    after its first weight update.

    Args:
        timed: function that takes a line about a program, and returns a context that shows it.
        options: options of the compiler.
    """

    def __init__(self, timed: Timed, options: dict[str, str | bool | int]) -> None:
        self.programs: list[CompiledProgram] = []
        self.runs: list[ObservedRun] = []
        self._timed, self._options = timed, options

    @contextlib.contextmanager
    def run(self, name: str, model: keras.Model, config: ExecutionConfig) -> Iterator[None]:
        self.runs.append(ObservedRun(name, model, config))
        yield

    def program(self, name: str, program: Any, varying: int | None = None) -> Any:
        del varying
        return _ProgramToCompile(name, program, self._compile)

    def runner(self, mode: Mode, runner: ModelRunner) -> ChunkRunner:
        """Return a runner whose outcomes are zeros, and note what it runs."""
        observed = self.runs[-1]
        observed.runners[mode] = runner

        def run(chunk: Chunk) -> Outcome:
            if not observed.batch:
                observed.batch, observed.data_bytes = chunk.batch, _data_bytes(chunk)
            return jax.tree.map(np.asarray, runner.run(chunk))

        return FunctionRunner(run)

    def epoch(
        self, mode: Mode, runner: ModelRunner, feed: Feed, callbacks: EpochCallbacks
    ) -> tuple[ChunkRunner, Feed, EpochCallbacks]:
        steps = self.runs[-1].config.divisions[mode].steps_per_update
        return self.runner(mode, runner), FirstChunk(feed, steps), callbacks

    def end_epoch(self, on_epoch_end: Callable[[int, Logs], None], epoch: int, logs: Logs) -> None:
        on_epoch_end(epoch, logs)
        self.runs[-1].model.stop_training = True

    def _compile(self, name: str, program: Any, arguments: PyTree) -> PyTree:
        """Compile a program, store its analysis, and return abstract arrays as its results."""
        run = self.runs[-1]
        with self._timed(f"{name} ({run.name})"):
            started = time.perf_counter()
            traced = program.trace(*arguments)
            lowered = traced.lower()
            lowered_at = time.perf_counter()
            try:
                with compiler_output_hidden():
                    compiled = lowered.compile(self._options)
            except jax.errors.JaxRuntimeError as error:
                fixed = argument_bytes(arguments)
                shortage = find_shortage(error, fixed)
                if shortage is None:
                    raise
                need = MemoryNeed(shortage.needed, donated_bytes(traced, arguments), fixed)
                raise TooLarge(Demand(name, need, shortage.available, run)) from None
        seconds = lowered_at - started, time.perf_counter() - lowered_at
        self.programs.append(analyze(name, run, traced, arguments, compiled, seconds))
        return jax.tree.map(
            lambda leaf, sharding: compile_only.stand_in(leaf.shape, leaf.dtype, sharding),
            traced.out_info,
            compiled.output_shardings,
        )


class _ProgramToCompile:
    """A jitted function that is compiled at its first call with arguments of each shape."""

    def __init__(self, name: str, program: Any, compile_it: Callable[..., PyTree]) -> None:
        self._name, self._program, self._compile = name, program, compile_it
        self._results: dict[Any, PyTree] = {}

    def __call__(self, *arguments: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(arguments)
        # The key has no shardings, because the replicas of a pipeline run one program on different
        # devices.
        key = structure, *((np.shape(leaf), jax.dtypes.result_type(leaf)) for leaf in leaves)
        others = _common_sharding(leaves)
        if key not in self._results:
            abstract = [_abstract(leaf, others) for leaf in leaves]
            found = self._compile(
                self._name, self._program, jax.tree.unflatten(structure, abstract)
            )
            self._results[key] = found, others
        results, compiled_for = self._results[key]
        if others == compiled_for:
            return results
        return jax.tree.map(
            lambda leaf: compile_only.stand_in(leaf.shape, leaf.dtype, others), results
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)


def _common_sharding(leaves: list[Any]) -> Sharding:
    """Return a sharding for arguments without one: replicated on all devices of the others."""
    found = [leaf.sharding for leaf in leaves if isinstance(leaf, compile_only.CompileOnlyArray)]
    if not found:
        return jax.sharding.SingleDeviceSharding(compile_only.default_device())
    if isinstance(found[0], NamedSharding):
        return NamedSharding(found[0].mesh, PartitionSpec())
    return found[0]


def _abstract(leaf: Any, otherwise: Sharding) -> jax.ShapeDtypeStruct:
    sharding = leaf.sharding if isinstance(leaf, compile_only.CompileOnlyArray) else otherwise
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf), sharding=sharding)


def _data_bytes(chunk: Chunk) -> int:
    """Return the bytes of a chunk on one device that reads it."""
    leaves = jax.tree.leaves(chunk.source)
    arrays = [leaf for leaf in leaves if isinstance(leaf, compile_only.CompileOnlyArray)]
    # A pipeline has a copy on each device that reads it.
    first = arrays[0].sharding.device_set
    return argument_bytes([array for array in arrays if array.sharding.device_set == first])
