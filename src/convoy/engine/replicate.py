"""The same step on several devices, each with its own share of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
from convoy import keras_bridge
from convoy.engine.state import Arrays, State, Variables
from convoy.engine.step import Batch, Forward, GradientStep, Logs, Step

AXIS = "replica"

# Odd and large, so that the streams of neighbouring replicas do not meet.
SEED_STRIDE = 0x9E3779B1


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


def replicate_gradients(step: GradientStep, roles: Roles) -> GradientStep:
    """Take the mean of the gradients over all replicas: those of one big batch."""

    def replicated(state: State, batch: Batch) -> tuple[State, Arrays, Logs]:
        new, gradients, logs = step(_diverge(state, roles), batch)
        return _agree(state, new, roles), jax.lax.pmean(gradients, AXIS), _mean(logs)

    return replicated


def replicate(step: Step, roles: Roles) -> Step:
    """Run a step without gradients on every replica."""

    def replicated(state: State, batch: Batch) -> tuple[State, Logs]:
        new, logs = step(_diverge(state, roles), batch)
        return _agree(state, new, roles), _mean(logs)

    return replicated


def replicate_forward(step: Forward, roles: Roles) -> Forward:
    """Run a forward pass on every replica; each keeps the outputs for its own share."""

    def replicated(state: State, batch: Batch) -> tuple[State, Any]:
        new, outputs = step(_diverge(state, roles), batch)
        return _agree(state, new, roles), outputs

    return replicated


def over_replicas(
    run: Callable[..., tuple[State, Any]], mesh: jax.sharding.Mesh, source: Any, result: Any
) -> Callable[..., tuple[State, Any]]:
    """Run a device loop on each device of a mesh; `source` and `result` say what is divided."""
    everywhere = jax.sharding.PartitionSpec()
    return jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(everywhere, source, everywhere),
        out_specs=(everywhere, result),
        check_vma=False,
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
