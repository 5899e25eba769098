"""Pipeline stages of a model: their assignment to its calls, and each stage as a pure function."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import keras
from convoy import keras_bridge
from convoy.engine.prepared_model import PreparedModel
from convoy.keras_bridge import (
    GraphCall,
    clear_losses,
    graph_inputs,
    graph_outputs,
    model_graph,
    with_training,
)
from convoy.pipeline.pipeline_stage import trace_built_model, trace_stages
from convoy.types import Arrays, Data, Tensors


@dataclass(frozen=True)
class Stage:
    """Some calls of a model's graph.

    Attributes:
        number: number of the stage, from 0.
        calls: calls of the stage, in order.
        variables: all variables of its layers; a layer that runs in several stages has its
            variables in each of them.
        inputs: tensors that it reads and does not compute: the model's inputs, or outputs of
            earlier stages.
        received: tensors that earlier stages send to it: its inputs that they compute, and for the
            last stage all outputs of the model that they compute.
        outputs: tensors that it computes for later stages or as outputs of the model.
        run_again: its operations that run in later stages too.
        reads_data: whether it reads inputs of the model or, as the last stage, the targets.
        is_last: whether it is the last stage, which computes the loss and the metrics.
    """

    number: int
    calls: tuple[GraphCall, ...]
    variables: tuple[keras.Variable, ...]
    inputs: tuple[int, ...]
    received: tuple[int, ...]
    outputs: tuple[int, ...]
    run_again: tuple[keras.Operation, ...]
    reads_data: bool
    is_last: bool

    @cached_property
    def trainable(self) -> list[keras.Variable]:
        return [variable for variable in self.variables if variable.trainable]

    @cached_property
    def non_trainable(self) -> list[keras.Variable]:
        return [variable for variable in self.variables if not variable.trainable]

    def forward(
        self, trainable: Arrays, non_trainable: Arrays, inputs: Tensors, *, training: bool
    ) -> tuple[Tensors, Arrays, Arrays]:
        """Run the forward pass.

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
            clear_losses(self.run_again)
        new = [scope.get_current_value(variable) for variable in self.non_trainable]
        return {tensor: tensors[tensor] for tensor in self.outputs}, new, list(scope.losses)


def make_stages(
    model: keras.Model, calls: Sequence[GraphCall], assignment: Sequence[int]
) -> list[Stage]:
    """Divide the calls of a model into stages by a valid assignment."""
    count = max(assignment) + 1
    by_stage = [
        [call for call, stage in zip(calls, assignment, strict=True) if stage == number]
        for number in range(count)
    ]
    needed_later = set(graph_outputs(model))
    run_later: set[int] = set()
    stages = []
    for number in reversed(range(count)):
        stages.append(_make_stage(model, number, by_stage[number], needed_later, run_later))
        needed_later |= {tensor for call in by_stage[number] for tensor in call.inputs}
        run_later |= {id(call.operation) for call in by_stage[number]}
    return stages[::-1]


def _make_stage(
    model: keras.Model,
    number: int,
    calls: list[GraphCall],
    needed_later: set[int],
    run_later: set[int],
) -> Stage:
    model_inputs, model_outputs = set(graph_inputs(model)), graph_outputs(model)
    is_last = not run_later
    computed = dict.fromkeys(tensor for call in calls for tensor in call.outputs)
    read = dict.fromkeys(tensor for call in calls for tensor in call.inputs)
    inputs = tuple(tensor for tensor in read if tensor not in computed)
    wanted = dict.fromkeys(inputs)
    if is_last:
        wanted |= dict.fromkeys(tensor for tensor in model_outputs if tensor not in computed)
    variables = {id(v): v for call in calls for v in call.variables}
    return Stage(
        number,
        tuple(calls),
        tuple(variables.values()),
        inputs=inputs,
        received=tuple(tensor for tensor in wanted if tensor not in model_inputs),
        # A model may return one of its inputs, which no stage computes.
        outputs=tuple(t for t in computed if t in needed_later and t not in model_inputs),
        run_again=tuple(call.operation for call in calls if id(call.operation) in run_later),
        reads_data=is_last or not model_inputs.isdisjoint(inputs),
        is_last=is_last,
    )


def has_gradient(value: jax.ShapeDtypeStruct | jax.Array) -> bool:
    """Return whether a value is of a floating-point or complex type, so that it has a gradient."""
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


def calls_of(model: keras.Model) -> list[GraphCall]:
    """Return the calls of a model in order, with nested models replaced by their own calls.

    Raises:
        ValueError: if the model is not built, or is a subclassed one that cannot be traced.
    """
    graph = model_graph(model)
    if graph is None and keras_bridge.is_subclassed(model):
        trace_built_model(model)
        graph = model_graph(model)
    if graph is None:
        raise ValueError(
            f"{model.name!r} is not built, so its layers are not known yet. Call "
            "model.build(input_shape) first."
        )
    return graph.nested_calls


def set_stage_assignment(model: keras.Model, stages: Sequence[int]) -> None:
    """Assign a stage to every call of a model, if the assignment is valid."""
    check_assignment(calls_of(model), stages)
    _use_stages(model, list(stages))


def reset_stage_assignment(model: keras.Model) -> None:
    """Make a model run without stages, even if its layers were created in `PipelineStage`."""
    _use_stages(model, [0] * len(calls_of(model)))


def _use_stages(model: keras.Model, stages: list[int]) -> None:
    prepared = PreparedModel.of(model)
    prepared.stages, prepared.deferred_split = stages, None


def stage_assignment(
    model: keras.Model, x: Data = None, *, predicts: bool = False
) -> list[int] | None:
    """Return the stage of every call of a model, or `None` if it has a single stage.

    Args:
        model: any model.
        x: input data that the model is about to run on, if known.
        predicts: whether the model is about to predict, instead of being trained or evaluated.

    Raises:
        ValueError: if only some of its layers have a stage, or the assignment is invalid; or if the
            model has changed since stages were assigned.
    """
    stages = unchecked_stage_assignment(model, x, predicts=predicts)
    if stages is None:
        return None
    calls = calls_of(model)
    if len(stages) != len(calls):
        raise ValueError(
            f"{model.name!r} was given stages for {len(stages)} layers, but has {len(calls)} now. "
            "Call set_pipeline_stage_assignment() again, or "
            "reset_pipeline_stage_assignment() for a model without stages."
        )
    return stages


def unchecked_stage_assignment(
    model: keras.Model, x: Data = None, *, predicts: bool = False
) -> list[int] | None:
    """Return the assignment as `stage_assignment` does, even if the model has changed since."""
    stages = PreparedModel.of(model).stages
    if stages is None or x is not None:
        trace_stages(model, x, predicts=predicts)
    if stages is None:
        graph = model_graph(model)
        if graph is None or not graph.is_marked:
            return None
        marks = [call.mark for call in graph.nested_calls]
        check_assignment(graph.nested_calls, marks)
        stages = [mark for mark in marks if mark is not None]
        set_stage_assignment(model, stages)
    return stages if max(stages) > 0 else None


def complete_assignment(calls: Sequence[GraphCall]) -> list[int]:
    """Return the stage of every call: its own, or the latest stage that computes its inputs."""
    computed_by: dict[int, int] = {}
    stages = []
    for call in calls:
        latest = max((computed_by.get(tensor, 0) for tensor in call.inputs), default=0)
        stage = latest if call.mark is None else call.mark
        computed_by |= dict.fromkeys(call.outputs, stage)
        stages.append(stage)
    return stages


def check_assignment(calls: Sequence[GraphCall], stages: Sequence[int | None]) -> None:
    """Reject an assignment of calls to stages that cannot be run.

    Raises:
        ValueError: if a call has no stage or a negative one, or reads a result of a later stage; or
            if a stage is empty.
    """
    if len(stages) != len(calls):
        raise ValueError(
            f"{len(stages)} stages were given for {len(calls)} layers. Pass one for each layer, in "
            "the order in which they run."
        )
    computed_by: dict[int, tuple[str, int]] = {}
    for call, stage in zip(calls, stages, strict=True):
        if stage is None:
            raise ValueError(f"Layer {call.name!r} has no stage, but others have. Assign one.")
        if stage < 0:
            raise ValueError(f"Layer {call.name!r} has stage {stage}. Number stages from 0.")
        for tensor in call.inputs:
            source, earlier = computed_by.get(tensor, ("", 0))
            if earlier > stage:
                raise ValueError(
                    f"Layer {call.name!r} of stage {stage} reads the output of {source!r} of stage "
                    f"{earlier}. A stage can only feed the same or a later one: assign the layer "
                    f"to stage {earlier} or later."
                )
        computed_by |= dict.fromkeys(call.outputs, (call.name, stage))
    present = {stage for stage in stages if stage is not None}
    for stage in range(max(present) + 1):
        if stage not in present:
            later = calls[stages.index(max(present))].name
            raise ValueError(
                f"Stage {stage} has no layer, but layer {later!r} has stage {max(present)}. Number "
                "the stages from 0 without a gap."
            )
