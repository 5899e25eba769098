"""What a network costs by arithmetic: floating-point work and bytes of every layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import keras
from convoy import keras_bridge
from convoy.engine.data.chunks import size
from convoy.pipeline.balance.layer_costs import input_shapes, live_after, output_shapes
from convoy.pipeline.balance.partition import allowed_cuts
from convoy.pipeline.stages import Stage, calls_of, make_stages
from convoy.plan.profile import Profile, normalised

# A backward pass computes two products for each one of the forward pass.
PASSES = 3
# Sizes between which times lie on a line.
SIZES = (1, 64)
# To start an operation.
START = 5e-6


def estimate(model: keras.Model, flops: float, bandwidth: float, source: str) -> Profile:
    """Return what a model would cost on a device of such speed.

    A layer takes as long as its products, or as its bytes take to and from memory, whichever is
    more.

    Args:
        model: a functional or sequential model.
        flops: floating-point operations per second that a device reaches.
        bandwidth: bytes per second to and from its memory.
        source: where these come from, for people.

    Raises:
        ValueError: if an input of the model has a size that is not known.
    """
    calls = calls_of(model)
    stages = make_stages(model, calls, list(range(len(calls))))
    shapes = input_shapes(model, 1)
    work, moved, weights, statistics, activations = [], [], [], [], []
    seen: set[int] = set()
    for stage in stages:
        inputs = {tensor: shapes[tensor] for tensor in stage.inputs}
        outputs = output_shapes(stage, inputs)
        shapes |= outputs
        new = [variable for variable in stage.variables if id(variable) not in seen]
        seen |= {id(variable) for variable in new}
        work.append(PASSES * _products(stage, inputs))
        moved.append(PASSES * (size(inputs) + size(outputs)))
        weights.append(_bytes(stage.trainable, new))
        statistics.append(_bytes(stage.non_trainable, new))
        activations.append(float(size(outputs)))
    live = [size([shapes[tensor] for tensor in after]) for after in live_after(model, calls)]

    def seconds(samples: int) -> list[float]:
        pairs = zip(work, moved, strict=True)
        return [START + samples * max(f / flops, b / bandwidth) for f, b in pairs]

    return Profile(
        names=tuple(call.name for call in calls),
        may_cut=tuple(allowed_cuts(calls)),
        shares=normalised(seconds(SIZES[-1])),
        weights=tuple(weights),
        statistics=tuple(statistics),
        activations=tuple(activations),
        live=tuple(map(float, live)),
        points=tuple((samples, sum(seconds(samples))) for samples in SIZES),
        source=source,
    )


def _bytes(variables: list[keras.Variable], new: list[keras.Variable]) -> int:
    ids = {id(variable) for variable in new}
    return size(keras_bridge.values([v for v in variables if id(v) in ids]))


def _products(stage: Stage, inputs: dict[int, jax.ShapeDtypeStruct]) -> float:
    """Count the floating-point operations of a call's convolutions and matrix products."""
    trainable = keras_bridge.values(stage.trainable)
    rest = keras_bridge.values(stage.non_trainable)
    traced = jax.make_jaxpr(
        lambda inputs: stage.forward(trainable, rest, inputs, training=True)[0]
    )(inputs)
    return sum(map(_operations, _equations(traced.jaxpr)))


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)


def _operations(equation: Any) -> float:
    shape = equation.outvars[0].aval.shape
    if equation.primitive.name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        out_channels = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * math.prod(shape) * math.prod(kernel) / out_channels
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2.0 * math.prod(shape) * math.prod(left[axis] for axis in contracted)
    return 0.0
