"""A stage of a model as a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import keras
from convoy.keras_bridge import (
    GraphCall,
    forget_losses,
    graph_inputs,
    graph_outputs,
    with_training,
)

Arrays = list[jax.Array]
Tensors = dict[int, Any]


@dataclass(frozen=True)
class Stage:
    """Some calls of a model's graph.

    Attributes:
        number: its place in the pipeline.
        calls: what it runs, in order.
        variables: all that its layers have; those of a layer that runs in several stages are in
            each of them.
        inputs: what it reads that earlier stages, or nobody, computed.
        outputs: what it computes that later stages or the model's outputs need.
        run_again: those of its operations that run in later stages too.
    """

    number: int
    calls: tuple[GraphCall, ...]
    variables: tuple[keras.Variable, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    run_again: tuple[keras.Operation, ...]

    @property
    def trainable(self) -> list[keras.Variable]:
        return [variable for variable in self.variables if variable.trainable]

    @property
    def non_trainable(self) -> list[keras.Variable]:
        return [variable for variable in self.variables if not variable.trainable]

    def forward(
        self,
        trainable: Arrays,
        non_trainable: Arrays,
        inputs: Tensors,
        *,
        training: bool,
    ) -> tuple[Tensors, Arrays, Arrays]:
        """Run the stage.

        Returns:
            The outputs, the new values of the non-trainable variables, and the losses that layers
            added.
        """
        mapping = [
            *zip(self.trainable, trainable, strict=True),
            *zip(self.non_trainable, non_trainable, strict=True),
        ]
        tensors = {tensor: inputs[tensor] for tensor in self.inputs}
        wrap = with_training(training)
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            for call in self.calls:
                call.run(tensors, wrap)
            forget_losses(self.run_again)
        new = [scope.get_current_value(variable) for variable in self.non_trainable]
        return {tensor: tensors[tensor] for tensor in self.outputs}, new, list(scope.losses)


def stages_of(
    model: keras.Model, calls: Sequence[GraphCall], assignment: Sequence[int]
) -> list[Stage]:
    """Cut a model by a checked assignment."""
    count = max(assignment) + 1
    by_stage = [
        [c for c, s in zip(calls, assignment, strict=True) if s == number]
        for number in range(count)
    ]
    needed_later = [set(graph_outputs(model)) for _ in range(count)]
    for number in range(count - 2, -1, -1):
        needed_later[number] |= needed_later[number + 1]
        needed_later[number] |= {i for call in by_stage[number + 1] for i in call.inputs}
    return [
        _stage(
            number,
            own,
            needed_later[number],
            set(graph_inputs(model)),
            {id(call.operation) for calls in by_stage[number + 1 :] for call in calls},
        )
        for number, own in enumerate(by_stage)
    ]


def _stage(
    number: int, calls: list[GraphCall], later: set[int], given: set[int], run_later: set[int]
) -> Stage:
    made = dict.fromkeys(tensor for call in calls for tensor in call.outputs)
    read = dict.fromkeys(tensor for call in calls for tensor in call.inputs)
    variables = {id(v): v for call in calls for v in call.variables}
    return Stage(
        number,
        tuple(calls),
        tuple(variables.values()),
        inputs=tuple(tensor for tensor in read if tensor not in made),
        # A model may return one of its inputs; nobody computes that.
        outputs=tuple(tensor for tensor in made if tensor in later and tensor not in given),
        run_again=tuple(call.operation for call in calls if id(call.operation) in run_later),
    )
