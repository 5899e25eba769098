"""Base class of the runners of whole models and of models in pipeline stages."""

import contextlib
import random
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator

import jax
import keras
from convoy.engine import progress
from convoy.engine.chunk_runner import Outcome
from convoy.engine.compose import fetch_nothing
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.placement import tree_bytes
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import Observer
from convoy.engine.state import Mode, State, Variables
from convoy.engine.step.step import custom_step, prediction_step
from convoy.types import Shapes


class CompiledRunner(ABC):
    """Runs chunks of data with compiled programs; implements `engine.chunk_runner.ModelRunner`.

    Args:
        model: model that runs.
        config: configuration of the run.
        mode: mode of the run.
        observer: observer of every program.
    """

    def __init__(
        self, model: keras.Model, config: ExecutionConfig, mode: Mode, observer: Observer
    ) -> None:
        self.model, self.config = model, config
        self.mode, self.observer = mode, observer
        self.variables = Variables(model, mode)
        self.output_steps = 1
        """Steps whose outputs one device call can hold; prediction only."""
        self._output_bytes: dict[tuple, int] = {}
        self._compiled_kinds: set[tuple] = set()
        self._in_flight: deque[Outcome] = deque()

    def run(self, chunk: Chunk) -> Outcome:
        """Run the steps of a chunk; the variables hold the result afterwards.

        Returns:
            The values of the metrics, or for prediction the outputs as host arrays.
        """
        # One earlier call may still be running; more would hold too much data.
        while len(self._in_flight) > 1:
            earlier = self._in_flight.popleft()
            progress.follow(earlier)
            jax.block_until_ready(earlier)
        shapes = [leaf.shape for leaf in jax.tree.leaves(chunk.source)]
        kind = (chunk.layout, chunk.micro_batch_samples, chunk.sharded, *shapes)
        if kind in self._compiled_kinds:
            outcome = self.run_call(chunk)
        else:
            with progress.compiling():
                outcome = self.run_call(chunk)
            self._compiled_kinds.add(kind)
        if self.mode != "predict":  # whose outputs are on the host already
            self._in_flight.append(outcome)
        return outcome

    @abstractmethod
    def run_call(self, chunk: Chunk) -> Outcome:
        """Run a chunk as one device call."""

    @abstractmethod
    def place(self) -> None:
        """Move the variables to the devices on which the programs run."""

    def still_fits(self) -> bool:
        """Return whether the model is still the one that the programs were compiled for."""
        return self.variables.are_those_of(self.model)

    def limit_outputs(self, example: Shapes, budget: int, max_steps: int) -> int:
        """Set and return the maximum number of steps of a prediction call."""
        leaves, structure = jax.tree.flatten(example)
        key = (*leaves, structure)
        if key not in self._output_bytes:
            self._output_bytes[key] = output_bytes(self.model, self.variables.read(), example)
        fitting = budget // max(1, self._output_bytes[key])
        self.output_steps = max(1, min(max_steps, fitting))
        return self.output_steps


def output_bytes(model: keras.Model, state: State, example: Shapes) -> int:
    """Return the bytes of the outputs for a batch of these shapes and types."""
    step = custom_step(model, "predict", fetch_nothing) or prediction_step(model, fetch_nothing)
    with _trace_for_shapes():
        _, outputs = jax.eval_shape(step, state, (example, 0))
    return tree_bytes(outputs)


@contextlib.contextmanager
def _trace_for_shapes() -> Iterator[None]:
    """Trace a step without effects, before the trace that is compiled.

    With it, layers warn only once, and draw from Python's generator as often as in stock Keras.
    """
    drawn_from = random.getstate()
    with warnings.catch_warnings(action="ignore"):
        yield
    random.setstate(drawn_from)
