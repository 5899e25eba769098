"""Interfaces of the objects that run chunks of data through a model.

`engine.program.WholeModelRunner` implements them for a whole model, the classes in
`pipeline.runner` for a model in pipeline stages; `engine.compiled_runner` has what these share.
Wrappers that observe or time device calls implement `ChunkRunner` only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from convoy.engine.data.chunks import Chunk
from convoy.engine.state import Variables
from convoy.types import Logs, PyTree, Shapes

if TYPE_CHECKING:
    from convoy.engine.execution_config import ExecutionConfig

Outcome = Logs | PyTree
"""The values of the metrics, or for prediction the outputs as host arrays."""


class ChunkRunner(Protocol):
    """Runs chunks of data through a model."""

    def run(self, chunk: Chunk) -> Outcome:
        """Run the steps of a chunk, and store the result in the model's variables."""
        ...


@dataclass(frozen=True)
class FunctionRunner:
    """A runner made of a function, for example one that calls another runner."""

    run: Callable[[Chunk], Outcome]


class ModelRunner(ChunkRunner, Protocol):
    """The compiled programs of one model in one mode."""

    config: ExecutionConfig
    variables: Variables

    def place(self) -> None:
        """Move the variables to the devices on which the programs run."""
        ...

    def still_fits(self) -> bool:
        """Return whether the model is still the one that the programs were compiled for."""
        ...

    def limit_outputs(self, example: Shapes, budget: int, max_steps: int) -> int:
        """Set and return the maximum number of steps of a prediction call.

        Args:
            example: shapes and types of a batch.
            budget: bytes that the outputs of one device call may take.
            max_steps: maximum number of steps that are requested.
        """
        ...
