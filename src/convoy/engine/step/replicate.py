"""The same step on several devices, each with its own share of the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from convoy import keras_bridge
from convoy.engine.replica_axis import AXIS, as_if_replicated
from convoy.engine.state import Arrays, State, Variables
from convoy.engine.step.all_reduce import Reduce, is_floating, mean, total
from convoy.engine.step.step import Forward, GradientStep, Logs, Position, Step

EVERYWHERE = jax.sharding.PartitionSpec()
DIVIDED = jax.sharding.PartitionSpec(None, AXIS)
"""By its second axis: the first is the micro-batch, the second the sample."""

# Odd and large, so that the streams of neighbouring replicas do not meet.
SEED_STRIDE = 0x9E3779B1


@dataclass(frozen=True)
class Roles:
    """What each variable is, which decides how replicas agree on its next value.

    Attributes:
        seeds: of the non-trainable ones, which are the state of a random generator.
        aggregations: of the metrics' variables, what Keras calls so.
        together: which of these are computed from all replicas' samples, on each of them.
    """

    seeds: tuple[bool, ...]
    aggregations: tuple[str, ...]
    together: tuple[bool, ...]

    @classmethod
    def of(cls, model: keras.Model, variables: Variables) -> Roles:
        seeds = keras_bridge.seed_variables(model)
        return cls(
            seeds=tuple(id(variable) in seeds for variable in variables.parts.non_trainable),
            aggregations=tuple(variable.aggregation for variable in variables.parts.metrics),
            together=keras_bridge.are_of_users_metrics(model, variables.parts.metrics),
        )


def replicate_gradients(step: GradientStep, roles: Roles, reduce: Reduce) -> GradientStep:
    """Reduce the gradients over all replicas: their mean is that of one big batch."""

    def replicated(state: State, position: Position) -> tuple[State, Arrays, Logs]:
        with as_if_replicated(jax.lax.axis_size(AXIS)):
            new, gradients, logs = step(_diverge(state, roles), position)
        shares = _shares(state, new, roles), _log_shares(logs)
        gradients, (sums, log_sums) = reduce(gradients, shares)
        return _agree(state, new, sums, roles), gradients, _mean_logs(logs, log_sums)

    return replicated


def replicate(step: Step, roles: Roles) -> Step:
    """Run a step without gradients on every replica."""

    def replicated(state: State, position: Position) -> tuple[State, Logs]:
        with as_if_replicated(jax.lax.axis_size(AXIS)):
            new, logs = step(_diverge(state, roles), position)
        sums, log_sums = total((_shares(state, new, roles), _log_shares(logs)))
        return _agree(state, new, sums, roles), _mean_logs(logs, log_sums)

    return replicated


def replicate_forward(step: Forward, roles: Roles) -> Forward:
    """Run a forward pass on every replica; each keeps the outputs for its own share."""

    def replicated(state: State, position: Position) -> tuple[State, Any]:
        with as_if_replicated(jax.lax.axis_size(AXIS)):
            new, outputs = step(_diverge(state, roles), position)
        return _agree(state, new, total(_shares(state, new, roles)), roles), outputs

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
        jnp.zeros_like(value) if aggregation == "sum" and not together else value
        for value, aggregation, together in zip(
            state.metrics, roles.aggregations, roles.together, strict=True
        )
    ]
    return state._replace(non_trainable=non_trainable, metrics=metrics)


class _Shares(NamedTuple):
    """What one replica has of a state that all then agree on; nothing where they agree already."""

    statistics: list[Any]
    metrics: list[Any]
    counted: Arrays


def _shares(old: State, new: State, roles: Roles) -> _Shares:
    return _Shares(
        statistics=[
            None if is_seed or not is_floating(value) else value
            for value, is_seed in zip(new.non_trainable, roles.seeds, strict=True)
        ],
        metrics=[
            value if not together and (aggregation == "sum" or is_floating(value)) else None
            for value, aggregation, together in zip(
                new.metrics, roles.aggregations, roles.together, strict=True
            )
        ],
        counted=[after - before for before, after in zip(old.numerics, new.numerics, strict=True)],
    )


def _agree(old: State, new: State, sums: _Shares, roles: Roles) -> State:
    """Bring the replicas' states together again, by the sums of their shares."""
    offset = jnp.uint32(SEED_STRIDE) * jax.lax.axis_index(AXIS).astype(jnp.uint32)
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
        numerics=[before + more for before, more in zip(old.numerics, sums.counted, strict=True)],
    )


def _log_shares(logs: Logs) -> list[jax.Array | None]:
    return [value if is_floating(value) else None for value in jax.tree.leaves(logs)]


def _mean_logs(logs: Logs, sums: list[jax.Array | None]) -> Logs:
    values, structure = jax.tree.flatten(logs)
    means = [mean(value, summed) for value, summed in zip(values, sums, strict=True)]
    return jax.tree.unflatten(structure, means)
