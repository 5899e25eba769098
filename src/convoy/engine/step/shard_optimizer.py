"""Sharded optimizer state (ZeRO-1): each replica keeps a shard of every variable."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from convoy.engine.data.placement import AXIS, REPLICATED, device_put
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import State, Variables
from convoy.engine.step.step import Position, Step
from convoy.types import Arrays, Logs
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclass(frozen=True)
class OptimizerShards:
    """The axis by which each of the optimizer's variables is sharded; without specs, none is."""

    mesh: Mesh
    specs: tuple[PartitionSpec, ...]

    @classmethod
    def of(cls, config: ExecutionConfig, variables: Variables) -> OptimizerShards | None:
        """Return the shards that a configuration requires, or `None`."""
        mesh = config.placement.mesh
        if mesh is None or not config.shard_optimizer_state:
            return None
        shapes = [tuple(variable.shape) for variable in variables.parts.optimizer]
        return cls(mesh, tuple(_spec(shape, config.replicas) for shape in shapes))

    def place(self, optimizer: Arrays) -> Arrays:
        """Move each shard of the optimizer's state to its device."""
        return [device_put(v, s) for v, s in zip(optimizer, self._shardings(), strict=True)]

    def constrain(self, step: Step) -> Step:
        """Make a step return the optimizer's state sharded, and everything else replicated."""

        def constrained(state: State, position: Position) -> tuple[State, Logs]:
            state, logs = step(state, position)
            replicated = NamedSharding(self.mesh, REPLICATED)
            shardings = self._shardings() or replicated
            optimizer = jax.lax.with_sharding_constraint(state.optimizer, shardings)
            others = jax.lax.with_sharding_constraint(state._replace(optimizer=[]), replicated)
            return others._replace(optimizer=optimizer), logs

        return constrained

    def _shardings(self) -> list[NamedSharding]:
        return [NamedSharding(self.mesh, spec) for spec in self.specs]


def _spec(shape: tuple[int, ...], replicas: int) -> PartitionSpec:
    """Shard the largest axis that the number of replicas divides, if there is one."""
    fitting = [axis for axis, size in enumerate(shape) if size % replicas == 0]
    if not fitting:
        return REPLICATED
    widest = max(fitting, key=lambda axis: shape[axis])
    return PartitionSpec(*(AXIS if axis == widest else None for axis in range(len(shape))))
