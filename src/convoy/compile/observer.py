"""An observer that compiles the programs of runs for the target instead of running them."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
import keras
import numpy as np
from convoy import compile_target
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
from convoy.engine.compiling_observer import CompilingObserver, make_results, shape_and_type
from convoy.engine.data.chunks import Chunk
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import Mode
from convoy.types import Logs, PyTree
from jax.sharding import NamedSharding, PartitionSpec, Sharding

Timed = Callable[[str], AbstractContextManager[None]]


class TargetObserver(CompilingObserver):
    """Compiles the programs of runs for the target; their results are abstract arrays.

    Training ends after its first epoch, and an epoch after its first weight update.

    Args:
        timed: function that takes a line about a program, and returns a context that shows it.
        options: options of the compiler.
    """

    def __init__(self, timed: Timed, options: dict[str, str | bool | int]) -> None:
        self.programs: list[CompiledProgram] = []
        self.runs: list[ObservedRun] = []
        self._timed, self._options = timed, options
        self._results: dict[tuple, tuple[PyTree, Sharding]] = {}

    @contextlib.contextmanager
    def run(self, name: str, model: keras.Model, config: ExecutionConfig) -> Iterator[None]:
        self.runs.append(ObservedRun(name, model, config))
        yield

    def runner(self, mode: Mode, runner: ModelRunner) -> ChunkRunner:
        """Return a runner whose outcomes are zeros, and note what it runs."""
        observed = self.runs[-1]
        observed.runners[mode] = runner

        def run(chunk: Chunk) -> Outcome:
            if not observed.batch:
                observed.batch, observed.data_bytes = chunk.micro_batch_samples, _data_bytes(chunk)
            return jax.tree.map(np.asarray, runner.run(chunk))

        return FunctionRunner(run)

    def max_steps(self, mode: Mode) -> int:
        return self.runs[-1].config.divisions[mode].steps_per_update

    def end_epoch(self, on_epoch_end: Callable[[int, Logs], None], epoch: int, logs: Logs) -> None:
        on_epoch_end(epoch, logs)
        self.runs[-1].model.stop_training = True

    def compile(self, name: str, program: Any, arguments: tuple[PyTree, ...]) -> PyTree:
        leaves, structure = jax.tree.flatten(arguments)
        # The replicas of a pipeline run one program, on different devices.
        key = program, structure, *map(shape_and_type, leaves)
        others = _common_sharding(leaves)
        if key not in self._results:
            abstract = [_abstract(leaf, others) for leaf in leaves]
            arguments = jax.tree.unflatten(structure, abstract)
            self._results[key] = self._compile(name, program, arguments), others
        results, compiled_for = self._results[key]
        if others == compiled_for:
            return results
        return jax.tree.map(
            lambda leaf: compile_target.stand_in(leaf.shape, leaf.dtype, others), results
        )

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
        return make_results(traced, compiled, compile_target.stand_in)


def _common_sharding(leaves: list[Any]) -> Sharding:
    """Return a sharding for arguments without one: replicated on all devices of the others."""
    found = [leaf.sharding for leaf in leaves if isinstance(leaf, compile_target.CompileOnlyArray)]
    if not found:
        return jax.sharding.SingleDeviceSharding(compile_target.default_device())
    if isinstance(found[0], NamedSharding):
        return NamedSharding(found[0].mesh, PartitionSpec())
    return found[0]


def _abstract(leaf: Any, otherwise: Sharding) -> jax.ShapeDtypeStruct:
    sharding = leaf.sharding if isinstance(leaf, compile_target.CompileOnlyArray) else otherwise
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf), sharding=sharding)


def _data_bytes(chunk: Chunk) -> int:
    """Return the bytes of a chunk on one device that reads it."""
    leaves = jax.tree.leaves(chunk.source)
    arrays = [leaf for leaf in leaves if isinstance(leaf, compile_target.CompileOnlyArray)]
    # A pipeline has a copy on each device that reads it.
    first = arrays[0].sharding.device_set
    return argument_bytes([array for array in arrays if array.sharding.device_set == first])
