"""Base of observers that compile the programs of runs and run none of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np
from convoy.engine.chunk_runner import ChunkRunner, ModelRunner
from convoy.engine.data.chunks import Chunk, Feed
from convoy.engine.observer import EpochCallbacks, Observer
from convoy.engine.state import Mode
from convoy.types import PyTree
from jax.sharding import Sharding

Compile = Callable[[str, Any, tuple[PyTree, ...]], PyTree]
"""A function that takes the name of a program, the program and its arguments, and returns results
that take the place of the computed ones."""


class CompilingObserver(Observer, ABC):
    """Compiles each program at its first call with each kind of arguments.

    An epoch ends after its first device call.
    """

    @abstractmethod
    def compile(self, name: str, program: Any, arguments: tuple[PyTree, ...]) -> PyTree:
        """Compile a program, and return the results of its calls with such arguments."""

    def max_steps(self, mode: Mode) -> int | None:
        """Return the maximum number of steps of a device call; `None` is that of the run."""
        del mode
        return None

    def program(self, name: str, program: Any, varying: int | None = None) -> Any:
        del varying
        return _CompiledProgram(name, program, self.compile)

    def epoch(
        self, mode: Mode, runner: ModelRunner, feed: Feed, callbacks: EpochCallbacks
    ) -> tuple[ChunkRunner, Feed, EpochCallbacks]:
        first = cast(Feed, _FirstChunk(feed, self.max_steps(mode)))
        return self.runner(mode, runner), first, callbacks


def make_results(
    traced: Any, compiled: Any, make: Callable[[tuple[int, ...], np.dtype, Sharding], Any]
) -> PyTree:
    """Return the results of a program that does not run.

    Args:
        traced: the traced program.
        compiled: the compiled program.
        make: function that makes an array of a shape, a type and a sharding.
    """
    return jax.tree.map(
        lambda leaf, sharding: make(leaf.shape, leaf.dtype, sharding),
        traced.out_info,
        compiled.output_shardings,
    )


class _CompiledProgram:
    """A jitted function whose calls compile it and return the observer's results."""

    def __init__(self, name: str, program: Any, compile_it: Compile) -> None:
        self._name, self._program, self._compile = name, program, compile_it
        self._results: dict[tuple, PyTree] = {}

    def __call__(self, *arguments: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(arguments)
        kinds = ((*shape_and_type(leaf), getattr(leaf, "sharding", None)) for leaf in leaves)
        key = structure, *kinds
        if key not in self._results:
            self._results[key] = self._compile(self._name, self._program, arguments)
        return self._results[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)


def shape_and_type(leaf: Any) -> tuple[tuple[int, ...], np.dtype]:
    return np.shape(leaf), jax.dtypes.result_type(leaf)


class _FirstChunk:
    """A feed that ends after its first chunk.

    Args:
        feed: the feed.
        max_steps: maximum number of steps of the chunk; by default that of the run.
    """

    def __init__(self, feed: Feed, max_steps: int | None) -> None:
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
