"""Interfaces of the objects that run chunks of data through a model.

`engine.program.Programs` implements them for a whole model, the classes in `pipeline.runner` for a
model in pipeline stages. Wrappers that observe or time device calls implement `ChunkRunner` only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from convoy.engine.data.chunks import Chunk
from convoy.engine.state import Variables
from convoy.types import Logs, PyTree, Shapes

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

    variables: Variables

    def place(self) -> None:
        """Move the variables to the devices on which the programs run."""
        ...

    def still_fits(self) -> bool:
        """Return whether the model still has the variables that the programs were compiled for."""
        ...

    def limit_outputs(self, example: Shapes, budget: int, steps_per_execution: int) -> int:
        """Return the maximum number of steps of a prediction call.

        Args:
            example: shapes and types of a batch.
            budget: bytes that the outputs of one device call may take.
            steps_per_execution: maximum number of steps that the user set.
        """
        ...
