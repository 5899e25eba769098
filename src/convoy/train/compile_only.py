"""`--compile-only`: compiles the programs of training for the devices of the run, and runs none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, cast

import jax
import keras
import numpy as np
from convoy.engine.chunk_runner import ChunkRunner, ModelRunner
from convoy.engine.data.chunks import Chunk, Feed
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import EpochCallbacks, Observer
from convoy.engine.state import Mode
from convoy.types import PyTree


class CompileOnly(Observer):
    """Compiles each program when it is first called; its results are zeros.

    JAX stores the programs in the compilation cache, where a later run finds them. An epoch ends
    after its first device call.

    Attributes:
        seconds: compilation time of each program by name; the programs of a stage in all replicas
            count as one.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def run(self, name: str, model: keras.Model, config: ExecutionConfig) -> Iterator[None]:
        del name, config
        # The results are zeros and must not be stored as weights.
        kept = [(variable, variable.numpy()) for variable in model.variables]
        yield
        for variable, value in kept:
            variable.assign(value)

    def program(self, name: str, program: Any, varying: int | None = None) -> Any:
        del varying
        return _Program(name, program, self.seconds)

    def epoch(
        self, mode: Mode, runner: ModelRunner, feed: Feed, callbacks: EpochCallbacks
    ) -> tuple[ChunkRunner, Feed, EpochCallbacks]:
        del mode
        return runner, cast(Feed, FirstChunk(feed)), callbacks


class _Program:
    """A jitted function that is compiled but not run."""

    def __init__(self, name: str, program: Any, seconds: dict[str, float]) -> None:
        self._name, self._program, self._seconds = name, program, seconds
        self._results: dict[tuple, PyTree] = {}

    def __call__(self, *arguments: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(arguments)
        key = structure, *map(_kind, leaves)
        if key not in self._results:
            began = time.perf_counter()
            traced = self._program.trace(*arguments)
            compiled = traced.lower().compile()
            took = time.perf_counter() - began
            self._seconds[self._name] = self._seconds.get(self._name, 0.0) + took
            self._results[key] = jax.tree.map(
                lambda leaf, sharding: jax.device_put(np.zeros(leaf.shape, leaf.dtype), sharding),
                traced.out_info,
                compiled.output_shardings,
            )
        return self._results[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)


def _kind(leaf: Any) -> tuple:
    return np.shape(leaf), jax.dtypes.result_type(leaf), getattr(leaf, "sharding", None)


class FirstChunk:
    """A feed that ends after its first chunk.

    Args:
        feed: the feed.
        max_steps: maximum number of steps of the chunk; by default that of the run.
    """

    def __init__(self, feed: Feed, max_steps: int | None = None) -> None:
        self._feed, self._max_steps, self._is_first = feed, max_steps, True

    def next(self, max_steps: int) -> Chunk | None:
        if not self._is_first:
            return None
        self._is_first = False
        return self._feed.next(min(max_steps, self._max_steps or max_steps))

    def prefetch(self, max_steps: int) -> None:
        """Do nothing, because there are no more chunks."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)
