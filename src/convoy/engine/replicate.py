"""The same step on several devices, each with its own share of the data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
from convoy import keras_bridge
from convoy.engine.reduce import AXIS, Reduce, total
from convoy.engine.state import Arrays, State, Variables
from convoy.engine.step import Forward, GradientStep, Logs, Position, Step

EVERYWHERE = jax.sharding.PartitionSpec()
DIVIDED = jax.sharding.PartitionSpec(None, AXIS)
"""By its second axis: the first is the micro-batch, the second the sample."""

# Odd and large, so that the streams of neighbouring replicas do not meet.
SEED_STRIDE = 0x9E3779B1

_replicas_in_trace: ContextVar[int] = ContextVar("convoy_replicas", default=1)


def replicas_in_trace() -> int:
    """Return how many replicas run what is being traced."""
    return _replicas_in_trace.get()


@contextlib.contextmanager
def as_if_replicated(replicas: int) -> Iterator[None]:
    """Trace what is in the block for so many replicas."""
    token = _replicas_in_trace.set(replicas)
    try:
        yield
    finally:
        _replicas_in_trace.reset(token)


@dataclass(frozen=True)
class Roles:
    """What each variable is, which decides how replicas agree on its next value."""

    seeds: tuple[bool, ...]
    aggregations: tuple[str, ...]

    @classmethod
    def of(cls, model: keras.Model, variables: Variables) -> Roles:
        seeds = keras_bridge.seed_variables(model)
        return cls(
            seeds=tuple(id(variable) in seeds for variable in variables.parts.non_trainable),
            aggregations=tuple(variable.aggregation for variable in variables.parts.metrics),
        )


def replicate_gradients(step: GradientStep, roles: Roles, reduce: Reduce) -> GradientStep:
    """Reduce the gradients over all replicas: their mean is that of one big batch."""

    def replicated(state: State, position: Position) -> tuple[State, Arrays, Logs]:
        with as_if_replicated(jax.lax.axis_size(AXIS)):
            new, gradients, logs = step(_diverge(state, roles), position)
        return _agree(state, new, roles), reduce(gradients), _mean_logs(logs)

    return replicated


def replicate(step: Step, roles: Roles) -> Step:
    """Run a step without gradients on every replica."""

    def replicated(state: State, position: Position) -> tuple[State, Logs]:
        with as_if_replicated(jax.lax.axis_size(AXIS)):
            new, logs = step(_diverge(state, roles), position)
        return _agree(state, new, roles), _mean_logs(logs)

    return replicated


def replicate_forward(step: Forward, roles: Roles) -> Forward:
    """Run a forward pass on every replica; each keeps the outputs for its own share."""

    def replicated(state: State, position: Position) -> tuple[State, Any]:
        with as_if_replicated(jax.lax.axis_size(AXIS)):
            new, outputs = step(_diverge(state, roles), position)
        return _agree(state, new, roles), outputs

    return replicated


def over_replicas(
    function: Callable[..., Any], mesh: jax.sharding.Mesh, arguments: tuple, results: tuple
) -> Callable[..., Any]:
    """Run a function on each device of a mesh.

    Args:
        function: what each device runs.
        mesh: the devices.
        arguments: which of its arguments are `DIVIDED`, and which are there `EVERYWHERE`.
        results: the same of its results.
    """
    return jax.shard_map(
        function, mesh=mesh, in_specs=arguments, out_specs=results, check_vma=False
    )


def _diverge(state: State, roles: Roles) -> State:
    """Give each replica its own random stream, and metrics that start from nothing."""
    offset = jnp.uint32(SEED_STRIDE) * jax.lax.axis_index(AXIS).astype(jnp.uint32)
    non_trainable = [
        value + offset.astype(value.dtype) if is_seed else value
        for value, is_seed in zip(state.non_trainable, roles.seeds, strict=True)
    ]
    metrics = [
        jnp.zeros_like(value) if aggregation == "sum" else value
        for value, aggregation in zip(state.metrics, roles.aggregations, strict=True)
    ]
    return state._replace(non_trainable=non_trainable, metrics=metrics)


def _agree(old: State, new: State, roles: Roles) -> State:
    """Bring the replicas' states together again, in one exchange."""
    replicas = jax.lax.axis_size(AXIS)
    offset = jnp.uint32(SEED_STRIDE) * jax.lax.axis_index(AXIS).astype(jnp.uint32)
    statistics, metrics, counted = total(
        (
            [
                None if is_seed or not _floating(value) else value
                for value, is_seed in zip(new.non_trainable, roles.seeds, strict=True)
            ],
            [
                value if aggregation == "sum" or _floating(value) else None
                for value, aggregation in zip(new.metrics, roles.aggregations, strict=True)
            ],
            [after - before for before, after in zip(old.numerics, new.numerics, strict=True)],
        )
    )
    return new._replace(
        non_trainable=[
            value - offset.astype(value.dtype) if is_seed else _mean(value, summed, replicas)
            for value, summed, is_seed in zip(
                new.non_trainable, statistics, roles.seeds, strict=True
            )
        ],
        metrics=[
            before + summed if aggregation == "sum" else _mean(value, summed, replicas)
            for before, value, summed, aggregation in zip(
                old.metrics, new.metrics, metrics, roles.aggregations, strict=True
            )
        ],
        numerics=[before + more for before, more in zip(old.numerics, counted, strict=True)],
    )


def _mean_logs(logs: Logs) -> Logs:
    values, structure = jax.tree.flatten(logs)
    sums = total([value if _floating(value) else None for value in values])
    replicas = jax.lax.axis_size(AXIS)
    means = [_mean(value, summed, replicas) for value, summed in zip(values, sums, strict=True)]
    return jax.tree.unflatten(structure, means)


def _mean(value: jax.Array, summed: jax.Array | None, replicas: int) -> jax.Array:
    """Average numbers over replicas; what is counted in whole numbers is the same on each."""
    return value if summed is None else summed / replicas


def _floating(value: jax.Array) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.floating))
