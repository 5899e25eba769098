"""The computation of a stage as a pure function, with the loss or the outputs in the last stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import keras
from convoy import cpu, keras_bridge
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.local_batch import Fetch, local_batch_shapes
from convoy.engine.state import Mode
from convoy.engine.step.global_batch import GlobalBatch
from convoy.pipeline.communication import LOSS, TensorShapes
from convoy.pipeline.runner.metrics import check_sums
from convoy.pipeline.stages import Stage
from convoy.types import Arrays, Batch, PyTree, Shapes, Tensors

Received = tuple[jax.Array, ...]
"""The tensors that a stage receives from earlier ones, in the order of `Stage.received`."""


# A stage runs a part of Keras's `train_step`. Data, losses and metrics are divided over the stages:
#
#                        first stage      other stages       last stage
#     reads data         inputs           inputs, if any     targets and sample weights
#     receives           -                tensors            tensors
#     own loss           add_loss, regularisers of its weights; the last one also the compiled loss
#     loss so far        own              received + own     received + own: the reported loss
#     metrics            -                -                  updated with the reported loss
#
# Each stage differentiates its own loss only. The gradient of later losses reaches it through the
# gradients of the tensors that it sends, so no loss counts twice.


class StageInputs(NamedTuple):
    """Inputs of a stage that have no gradient.

    Attributes:
        non_trainable: values of its non-trainable variables.
        data: the micro-batch or its position, for a stage that reads data; else empty.
        metrics: state of the metrics, for the last stage; else empty.
        loss: sum of the losses of earlier stages.
    """

    non_trainable: Arrays
    data: Batch
    metrics: Arrays
    loss: jax.Array

    def with_batch(self, fetch: Fetch) -> StageInputs:
        """Return the inputs with the micro-batch in place of its position."""
        return self._replace(data=fetch(*self.data)) if self.data else self


Computed = tuple[tuple[PyTree, PyTree], tuple[Arrays, Arrays, jax.Array]]
"""`((outputs, own loss), (non-trainable values, metrics, loss so far))`."""

StageFunction = Callable[[Arrays, Received, StageInputs], Computed]
"""Takes the values of the trainable variables, the tensors received, and all other inputs."""

Transform = Callable[[Callable[..., PyTree]], Callable[..., PyTree]]
"""Takes a function, and returns one that traces it with replaced Keras operations."""


def make_stage_function(
    model: keras.Model, stages: Sequence[Stage], number: int, mode: Mode, replicas: int = 1
) -> StageFunction:
    """Return the computation of a stage.

    In the mode `"predict"` there is no loss, and the last stage returns the model's outputs.

    Args:
        model: model in stages.
        stages: all of its stages.
        number: number of the stage.
        mode: mode of the run.
        replicas: number of replicas whose metrics are added up.
    """
    stage = stages[number]
    operations = [call.operation for call in stage.calls]
    # A variable that several stages share is regularised by the first of them.
    earlier = {id(v) for other in stages[:number] for v in other.variables}
    regularised = [
        v
        for v in stage.trainable
        if getattr(v, "regularizer", None) is not None and id(v) not in earlier
    ]

    def compute(trainable: Arrays, received: Received, inputs: StageInputs) -> Computed:
        tensors: Tensors = dict(zip(stage.received, received, strict=True))
        x = y = weight = None
        if stage.reads_data:
            x, y, weight = keras_bridge.unpack(inputs.data)
            tensors |= keras_bridge.graph_input_tensors(model, x)
        with keras_bridge.metric_updates_refused([] if mode == "predict" else operations):
            outputs, new, losses = stage.forward(
                trainable, inputs.non_trainable, tensors, training=mode == "train"
            )
        if not stage.is_last:
            _check_masks(stage, outputs)
        if mode == "predict":
            result: PyTree = tuple(outputs.values())
            if stage.is_last:
                result = keras_bridge.pack_outputs(model, tensors | outputs)
            return (result, ()), (new, [], inputs.loss)
        values = {id(v): value for v, value in zip(stage.trainable, trainable, strict=True)}
        losses += [variable.regularizer(values[id(variable)]) for variable in regularised]
        own = sum((jnp.asarray(loss, jnp.float32) for loss in losses), jnp.float32(0))
        metrics = inputs.metrics
        if stage.is_last:
            y_pred = keras_bridge.pack_outputs(model, tensors | outputs)
            loss, metrics = keras_bridge.compiled_loss(model, metrics, y, y_pred, weight)
            own, outputs = own + loss, {}

            def update(metrics: Arrays) -> Arrays:
                total = inputs.loss + own
                return keras_bridge.update_metrics(
                    model, metrics, total, y_pred, y, y_pred, weight
                )[1]

            check_sums(model, update, metrics, replicas)
            metrics = update(metrics)
        return (tuple(outputs.values()), own), (new, metrics, inputs.loss + own)

    return compute


def _check_masks(stage: Stage, outputs: Tensors) -> None:
    """Reject outputs with a mask, which would be lost between stages.

    Raises:
        ValueError: with the layer that made the mask.
    """
    for call in stage.calls:
        if any(
            keras_bridge.get_keras_mask(outputs.get(tensor)) is not None for tensor in call.outputs
        ):
            raise ValueError(
                f"Layer {call.name!r} of stage {stage.number} passes a mask to a later stage, but "
                "a mask cannot leave its stage. Split the model where no mask is needed."
            )


def with_local_operations(divisor: int, shards: int, platform: str) -> Transform:
    """Return a transform that traces a function with operations for a shard of a global batch.

    Args:
        divisor: number of shards over which a mean is taken later.
        shards: number of shards of the global batch.
        platform: platform of the devices.
    """

    def transform(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        def traced(*args: PyTree) -> PyTree:
            with keras_bridge.replaced_operations(GlobalBatch(divisor, separate_programs=shards)):
                if not cpu.fuses(platform):
                    return function(*args)
                with keras_bridge.replaced_operations(cpu.Fusion()):
                    return function(*args)

        return traced

    return transform


def shapes_between_stages(
    stages: Sequence[Stage],
    functions: Sequence[StageFunction],
    chunk: Chunk,
    replicas: int,
    transform: Transform,
) -> tuple[TensorShapes, Shapes]:
    """Trace stages one after the other, without compiling them.

    A process uses the shapes to receive tensors that it does not compute.

    Args:
        stages: all stages.
        functions: computations of the first stages, or of all.
        chunk: chunk of data that they read.
        replicas: number of replicas that divide a micro-batch.
        transform: transform under which the functions are traced.

    Returns:
        The shapes and types of all tensors between these stages, and of the results of the last of
        them.
    """
    found: TensorShapes = {}
    outputs: Shapes = ()
    for stage, function in zip(stages, functions, strict=False):
        data = micro_batch_shapes(chunk, replicas) if stage.reads_data else ()
        inputs = StageInputs(_variable_shapes(stage.non_trainable), data, [], LOSS)  # type: ignore[arg-type]
        received = tuple(found[tensor] for tensor in stage.received)
        trainable = _variable_shapes(stage.trainable)
        (outputs, _), _ = jax.eval_shape(transform(function), trainable, received, inputs)
        if not stage.is_last:
            found |= zip(stage.outputs, outputs, strict=True)
    return found, outputs


def _variable_shapes(variables: Sequence[keras.Variable]) -> Shapes:
    return [jax.ShapeDtypeStruct(v.shape, jnp.dtype(v.dtype)) for v in variables]


def micro_batch_shapes(chunk: Chunk, replicas: int) -> Shapes:
    """Return the shapes of a replica's shard of a micro-batch, which may be in other processes."""
    is_block = chunk.layout == "block"
    placed = chunk.source if is_block else chunk.source[0]
    source = placed.shapes if is_block else (placed.shapes,)
    return local_batch_shapes(replace(chunk, source=source), replicas)
