"""What each stage of a model computes, with the loss, or the outputs, at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from convoy import keras_bridge
from convoy.engine.step.step import Fetch
from convoy.keras_bridge import graph_inputs, graph_outputs
from convoy.pipeline.runner.metric_checks import check_sums
from convoy.pipeline.stage import Stage


class Rest(NamedTuple):
    """What a stage reads that has no gradient.

    Attributes:
        non_trainable: the values of these variables.
        data: the micro-batch, or where it is, for stages that read data; else empty.
        metrics: their state, for the last stage; else empty.
        loss: what earlier stages have added to it.
    """

    non_trainable: list[jax.Array]
    data: Any
    metrics: list[jax.Array]
    loss: jax.Array


class Body(NamedTuple):
    """What a stage computes, as `compute(trainable, received, rest)`.

    It returns `((outputs, own loss), (non_trainable, metrics, loss so far))`; `rest` is all that
    has no gradient.
    """

    stage: Stage
    compute: Callable[..., Any]


def fetched(rest: Rest, fetch: Fetch) -> Rest:
    """Put the micro-batch in the place of where it is."""
    return rest._replace(data=fetch(*rest.data)) if rest.data else rest


def received_by(stage: Stage, last: bool, model: keras.Model) -> tuple[int, ...]:
    """Return what a stage is sent by earlier ones; the last also needs the model's outputs."""
    given = set(graph_inputs(model))
    wanted = dict.fromkeys(stage.inputs)
    if last:
        made = {tensor for call in stage.calls for tensor in call.outputs}
        wanted |= dict.fromkeys(i for i in graph_outputs(model) if i not in made)
    return tuple(tensor for tensor in wanted if tensor not in given)


def reads_data(stage: Stage, last: bool, model: keras.Model) -> bool:
    return last or bool(set(stage.inputs) & set(graph_inputs(model)))


def make_body(
    model: keras.Model,
    stages: Sequence[Stage],
    number: int,
    replicas: int,
    *,
    training: bool = True,
) -> Body:
    """Return what a stage computes, with the loss.

    Args:
        model: it has stages.
        stages: all of them.
        number: of the stage.
        replicas: of the pipeline, whose metrics are added up.
        training: whether it trains.
    """
    stage, last = stages[number], number == len(stages) - 1
    received_ids = received_by(stage, last, model)
    reads = reads_data(stage, last, model)
    regularised = [v for v in stage.trainable if getattr(v, "regularizer", None) is not None]
    # A variable that several stages share is regularised by the first of them.
    earlier = {id(v) for other in stages[:number] for v in other.variables}
    regularised = [v for v in regularised if id(v) not in earlier]

    def compute(trainable: list[jax.Array], received: tuple, rest: Rest) -> Any:
        tensors = dict(zip(received_ids, received, strict=True))
        x = y = weight = None
        if reads:
            x, y, weight = keras_bridge.unpack(rest.data)
            tensors |= keras_bridge.graph_input_tensors(model, x)
        outputs, new, losses = stage.forward(
            trainable, rest.non_trainable, tensors, training=training
        )
        if not last:
            _refuse_masks(stage, outputs)
        values = {id(v): value for v, value in zip(stage.trainable, trainable, strict=True)}
        losses += [variable.regularizer(values[id(variable)]) for variable in regularised]
        own = sum((jnp.asarray(loss, jnp.float32) for loss in losses), jnp.float32(0))
        metrics = rest.metrics
        if last:
            y_pred = keras_bridge.pack_outputs(model, tensors | outputs)
            loss, metrics = keras_bridge.compiled_loss(model, metrics, y, y_pred, weight)
            own, outputs = own + loss, {}

            def update(metrics: list[jax.Array]) -> list[jax.Array]:
                whole = rest.loss + own
                return keras_bridge.update_metrics(
                    model, metrics, whole, y_pred, y, y_pred, weight
                )[1]

            check_sums(model, update, metrics, replicas)
            metrics = update(metrics)
        return (tuple(outputs.values()), own), (new, metrics, rest.loss + own)

    return Body(stage, compute)


def make_prediction(model: keras.Model, stages: Sequence[Stage], number: int) -> Body:
    """Return what a stage computes, without a loss; the last one returns the model's outputs."""
    stage, last = stages[number], number == len(stages) - 1
    received_ids = received_by(stage, last, model)
    reads = reads_data(stage, last, model)

    def compute(trainable: list[jax.Array], received: tuple, rest: Rest) -> Any:
        tensors = dict(zip(received_ids, received, strict=True))
        if reads:
            x, _, _ = keras_bridge.unpack(rest.data)
            tensors |= keras_bridge.graph_input_tensors(model, x)
        outputs, new, _ = stage.forward(trainable, rest.non_trainable, tensors, training=False)
        if last:
            return (keras_bridge.pack_outputs(model, tensors | outputs), ()), (new, [], rest.loss)
        _refuse_masks(stage, outputs)
        return (tuple(outputs.values()), ()), (new, [], rest.loss)

    return Body(stage, compute)


def _refuse_masks(stage: Stage, outputs: dict[int, Any]) -> None:
    """Refuse to send on what has a mask, which would be lost.

    Raises:
        ValueError: with the layer that made it.
    """
    for call in stage.calls:
        if any(
            keras_bridge.get_keras_mask(outputs.get(tensor)) is not None for tensor in call.outputs
        ):
            raise ValueError(
                f"Layer {call.name!r} of stage {stage.number} hands a mask to a later stage, but "
                "masks stay in their stage. Cut where no mask is needed any more."
            )
