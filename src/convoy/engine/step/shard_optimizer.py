"""The optimizer's state divided over replicas: each keeps a share of every variable."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from convoy.engine.data.device_put import put
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.replica_axis import AXIS
from convoy.engine.state import Arrays, State, Variables
from convoy.engine.step.replicate import EVERYWHERE
from convoy.engine.step.step import Logs, Position, Step

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Shards:
    """Which axis of each of the optimizer's variables is divided."""

    mesh: jax.sharding.Mesh
    specs: tuple[jax.sharding.PartitionSpec, ...]

    @classmethod
    def of(cls, config: ExecutionConfig, variables: Variables) -> Shards | None:
        """Return the shards that a plan asks for, if it does."""
        mesh = config.placement.mesh
        if mesh is None or not config.shard_optimizer_state:
            return None
        shapes = [tuple(variable.shape) for variable in variables.parts.optimizer]
        return cls(mesh, tuple(_spec(shape, config.replicas) for shape in shapes))

    def place(self, optimizer: Arrays) -> Arrays:
        """Move the optimizer's state to where it belongs."""
        return [put(v, s) for v, s in zip(optimizer, self._shardings(), strict=True)]

    def keep(self, step: Step) -> Step:
        """Have a step leave the optimizer's state divided, and all else on every replica."""

        def kept(state: State, position: Position) -> tuple[State, Logs]:
            state, logs = step(state, position)
            optimizer = jax.lax.with_sharding_constraint(state.optimizer, self._shardings())
            everywhere = jax.sharding.NamedSharding(self.mesh, EVERYWHERE)
            rest = jax.lax.with_sharding_constraint(state._replace(optimizer=[]), everywhere)
            return rest._replace(optimizer=optimizer), logs

        return kept

    def _shardings(self) -> list[jax.sharding.NamedSharding]:
        return [jax.sharding.NamedSharding(self.mesh, spec) for spec in self.specs]


def _spec(shape: Shape, replicas: int) -> jax.sharding.PartitionSpec:
    """Divide the largest axis that the number of replicas divides, if there is one."""
    fitting = [axis for axis, size in enumerate(shape) if size % replicas == 0]
    if not fitting:
        return EVERYWHERE
    widest = max(fitting, key=lambda axis: shape[axis])
    return jax.sharding.PartitionSpec(*(AXIS if a == widest else None for a in range(len(shape))))
