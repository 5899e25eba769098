"""`--compile-only`: compiles the programs of training for the devices of the run, and runs none."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np
from convoy.engine.compiling_observer import CompilingObserver, make_results
from convoy.engine.execution_config import ExecutionConfig
from convoy.types import PyTree


class CompileOnly(CompilingObserver):
    """Compiles the programs of a run; their results are zeros.

    JAX stores the programs in the compilation cache, where a later run finds them.

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

    def compile(self, name: str, program: Any, arguments: tuple[PyTree, ...]) -> PyTree:
        began = time.perf_counter()
        traced = program.trace(*arguments)
        compiled = traced.lower().compile()
        took = time.perf_counter() - began
        self.seconds[name] = self.seconds.get(name, 0.0) + took
        return make_results(
            traced,
            compiled,
            lambda shape, dtype, sharding: jax.device_put(np.zeros(shape, dtype), sharding),
        )
