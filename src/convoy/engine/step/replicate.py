"""Data parallelism: the same step on several devices, each with a shard of the data.

    replica 0   state --> diverge --> step --> local state --+                +--> state
    replica 1   state --> diverge --> step --> local state --+-- all-reduce --+--> state

All replicas start from the same state. `_diverge` gives each replica its own random stream and sets
its metrics to zero. After the step, `_agree` makes the states equal again: it averages statistics,
adds up metrics, and resets the random streams to a common state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import keras
from convoy import keras_bridge
from convoy.engine.data.placement import AXIS
from convoy.engine.state import State, Variables
from convoy.engine.step.all_reduce import Reduce, is_floating, mean, total, trace_for_replicas
from convoy.engine.step.step import ForwardStep, GradientStep, Position
from convoy.types import Arrays, Logs, PyTree
from jax.sharding import Mesh, PartitionSpec

Specs = tuple | PartitionSpec
"""A PyTree of partition specs."""

# Odd and large, so that the random streams of neighbouring replicas do not overlap.
SEED_STRIDE = 0x9E3779B1


@dataclass(frozen=True)
class Roles:
    """The role of each variable, which determines how replicas combine its new values.

    Attributes:
        seeds: for each non-trainable variable, whether it is the state of a random generator.
        aggregations: for each variable of a metric, its `aggregation` in Keras.
        global_metrics: for each variable of a metric, whether every replica computes it from the
            samples of all replicas.
    """

    seeds: tuple[bool, ...]
    aggregations: tuple[str, ...]
    global_metrics: tuple[bool, ...]

    @classmethod
    def of(cls, model: keras.Model, variables: Variables) -> Roles:
        seeds = keras_bridge.seed_variables(model)
        return cls(
            seeds=tuple(id(variable) in seeds for variable in variables.parts.non_trainable),
            aggregations=tuple(variable.aggregation for variable in variables.parts.metrics),
            global_metrics=keras_bridge.of_custom_metrics(model, variables.parts.metrics),
        )


def replicate_gradients(step: GradientStep, roles: Roles, reduce: Reduce) -> GradientStep:
    """Reduce the gradients over all replicas; the mean is the gradient of the global batch."""

    def replicated(state: State, position: Position) -> tuple[State, Arrays, Logs]:
        with trace_for_replicas(jax.lax.axis_size(AXIS)):
            new, gradients, logs = step(_diverge(state, roles), position)
        summands = _summands(state, new, roles), _floating_logs(logs)
        gradients, (sums, log_sums) = reduce(gradients, summands)
        return _agree(state, new, sums, roles), gradients, _mean_logs(logs, log_sums)

    return replicated


def replicate(step: ForwardStep, roles: Roles, *, keeps_outputs: bool = False) -> ForwardStep:
    """Run a step without gradients on every replica.

    Args:
        step: the step, which returns logs or outputs.
        roles: the roles of the variables.
        keeps_outputs: whether each replica keeps the outputs of its own shard; logs are averaged.
    """

    def replicated(state: State, position: Position) -> tuple[State, PyTree]:
        with trace_for_replicas(jax.lax.axis_size(AXIS)):
            new, outcome = step(_diverge(state, roles), position)
        logs = {} if keeps_outputs else outcome
        sums, log_sums = total((_summands(state, new, roles), _floating_logs(logs)))
        outcome = outcome if keeps_outputs else _mean_logs(logs, log_sums)
        return _agree(state, new, sums, roles), outcome

    return replicated


def over_replicas(
    function: Callable[..., PyTree], mesh: Mesh, arguments: Specs, results: Specs
) -> Callable[..., PyTree]:
    """Run a function on each device of a mesh.

    Args:
        function: the function that each device runs.
        mesh: the devices.
        arguments: for each argument, `SHARDED` or `REPLICATED`.
        results: the same for each result.
    """
    return jax.shard_map(
        function, mesh=mesh, in_specs=arguments, out_specs=results, check_vma=False
    )


def _seed_offset() -> jax.Array:
    return jnp.uint32(SEED_STRIDE) * jax.lax.axis_index(AXIS).astype(jnp.uint32)


def _diverge(state: State, roles: Roles) -> State:
    """Give each replica its own random stream, and set its metrics to zero."""
    offset = _seed_offset()
    non_trainable = [
        value + offset.astype(value.dtype) if is_seed else value
        for value, is_seed in zip(state.non_trainable, roles.seeds, strict=True)
    ]
    metrics = [
        jnp.zeros_like(value) if aggregation == "sum" and not is_global else value
        for value, aggregation, is_global in zip(
            state.metrics, roles.aggregations, roles.global_metrics, strict=True
        )
    ]
    return state._replace(non_trainable=non_trainable, metrics=metrics)


class _Summands(NamedTuple):
    """The values of a replica that are summed over replicas; `None` where they are equal."""

    statistics: list[jax.Array | None]
    metrics: list[jax.Array | None]
    numerics: Arrays


def _summands(old: State, new: State, roles: Roles) -> _Summands:
    return _Summands(
        statistics=[
            # A value that the step returns unchanged, as in inference, is equal on all replicas.
            None if is_seed or value is before or not is_floating(value) else value
            for before, value, is_seed in zip(
                old.non_trainable, new.non_trainable, roles.seeds, strict=True
            )
        ],
        metrics=[
            value if not is_global and (aggregation == "sum" or is_floating(value)) else None
            for value, aggregation, is_global in zip(
                new.metrics, roles.aggregations, roles.global_metrics, strict=True
            )
        ],
        numerics=[after - before for before, after in zip(old.numerics, new.numerics, strict=True)],
    )


def _agree(old: State, new: State, sums: _Summands, roles: Roles) -> State:
    """Make the states of all replicas equal again, given sums over replicas."""
    offset = _seed_offset()
    return new._replace(
        non_trainable=[
            value - offset.astype(value.dtype) if is_seed else mean(value, summed)
            for value, summed, is_seed in zip(
                new.non_trainable, sums.statistics, roles.seeds, strict=True
            )
        ],
        metrics=[
            before + summed if aggregation == "sum" and summed is not None else mean(value, summed)
            for before, value, summed, aggregation in zip(
                old.metrics, new.metrics, sums.metrics, roles.aggregations, strict=True
            )
        ],
        numerics=[
            before + added for before, added in zip(old.numerics, sums.numerics, strict=True)
        ],
    )


def _floating_logs(logs: Logs) -> list[jax.Array | None]:
    return [value if is_floating(value) else None for value in jax.tree.leaves(logs)]


def _mean_logs(logs: Logs, sums: list[jax.Array | None]) -> Logs:
    values, structure = jax.tree.flatten(logs)
    means = [mean(value, summed) for value, summed in zip(values, sums, strict=True)]
    return jax.tree.unflatten(structure, means)
