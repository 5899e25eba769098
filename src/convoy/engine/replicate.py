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
from convoy.engine.state import Arrays, State, Variables
from convoy.engine.step import Forward, GradientStep, Logs, Position, Step

Reduce = Callable[[Arrays], Arrays]

AXIS = "replica"

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
        return _agree(state, new, roles), reduce(gradients), _mean(logs)

    return replicated


def replicate(step: Step, roles: Roles) -> Step:
    """Run a step without gradients on every replica."""

    def replicated(state: State, position: Position) -> tuple[State, Logs]:
        with as_if_replicated(jax.lax.axis_size(AXIS)):
            new, logs = step(_diverge(state, roles), position)
        return _agree(state, new, roles), _mean(logs)

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
    """Bring the replicas' states together again."""
    offset = jnp.uint32(SEED_STRIDE) * jax.lax.axis_index(AXIS).astype(jnp.uint32)
    non_trainable = [
        value - offset.astype(value.dtype) if is_seed else _mean(value)
        for value, is_seed in zip(new.non_trainable, roles.seeds, strict=True)
    ]
    metrics = [
        before + jax.lax.psum(value, AXIS) if aggregation == "sum" else _mean(value)
        for before, value, aggregation in zip(
            old.metrics, new.metrics, roles.aggregations, strict=True
        )
    ]
    return new._replace(
        non_trainable=non_trainable, metrics=metrics, numerics=_add_up(old.numerics, new.numerics)
    )


def _add_up(before: Arrays, after: Arrays) -> Arrays:
    """Add what each replica has counted to what all of them had."""
    return [old + jax.lax.psum(new - old, AXIS) for old, new in zip(before, after, strict=True)]


def _mean(tree: Any) -> Any:
    """Average numbers over replicas; what is counted in whole numbers is the same on each."""

    def mean(value: jax.Array) -> jax.Array:
        floating = jnp.issubdtype(value.dtype, jnp.floating)
        return jax.lax.pmean(value, AXIS) if floating else value

    return jax.tree.map(mean, tree)
