"""Sharded state: the optimizer state (ZeRO-1), or also the weights (ZeRO-3, FSDP).

With a sharded optimizer state, a replica updates its shard of the weights, then gathers all shards:

    weights --> gradients --> reduce-scatter --> update of a shard --> all-gather --> weights

With sharded weights, it gathers them for the gradients:

    shards --> all-gather --> gradients --> reduce-scatter --> update of a shard --> shards
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import jax
from convoy.engine.data.placement import AXIS, REPLICATED, device_put
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import State, Variables
from convoy.engine.step.all_reduce import Reduce, Reduction
from convoy.engine.step.step import GradientStep, Position, Step
from convoy.types import Arrays, Logs, PyTree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

REPLICATED_ELEMENTS = 2048
"""Maximum elements of a variable that is not sharded, because exchanging shards would be slower."""

Specs = list[PartitionSpec]


@dataclass(frozen=True)
class StateShards:
    """The axes by which the parts of a state are sharded.

    Attributes:
        mesh: the devices.
        trainable: partition spec of each weight.
        optimizer: partition spec of each of the optimizer's variables.
        gradients: partition spec of the reduced gradient of each weight; for sharded weights, that
            of the weight.
        by_micro_batch: whether weights are gathered for each micro-batch, and again for its
            backward pass, instead of once for each weight update.
    """

    # Gathering once needs the least communication, but a device then holds all weights and all
    # gradients during accumulation. The configuration limits the memory for this. Above the limit,
    # each micro-batch gathers a weight where it is used, and reduce-scatters its gradient
    # immediately.

    mesh: Mesh
    trainable: Specs
    optimizer: Specs
    gradients: Specs
    by_micro_batch: bool = False

    @classmethod
    def of(cls, config: ExecutionConfig, variables: Variables) -> StateShards | None:
        """Return the shards that a configuration requires, or `None`."""
        mesh, parts = config.placement.mesh, variables.parts
        if mesh is None or config.shard is None:
            return None
        shards_weights = config.shard == "weights"
        gradients = [_spec(variable.shape, mesh.size) for variable in parts.trainable]
        gathered = sum(
            2 * variable.value.nbytes
            for variable, spec in zip(parts.trainable, gradients, strict=True)
            if spec != REPLICATED
        )
        return cls(
            mesh,
            trainable=gradients if shards_weights else [REPLICATED] * len(gradients),
            optimizer=[_spec(variable.shape, mesh.size) for variable in parts.optimizer],
            gradients=gradients,
            by_micro_batch=shards_weights and gathered > config.gather_budget,
        )

    @classmethod
    def none(cls, mesh: Mesh, variables: Variables) -> StateShards:
        """Return the specs of a state that is not sharded."""
        weights, own = len(variables.parts.trainable), len(variables.parts.optimizer)
        return cls(mesh, [REPLICATED] * weights, [REPLICATED] * own, [REPLICATED] * weights)

    @property
    def specs(self) -> State:
        """The partition specs of a state."""
        return State(self.trainable, REPLICATED, self.optimizer, REPLICATED, REPLICATED)  # type: ignore[arg-type]

    @property
    def specs_for_gradients(self) -> State:
        """The same for a step that does not read the sharded optimizer state."""
        return State(self.trainable, REPLICATED, REPLICATED, REPLICATED, REPLICATED)  # type: ignore[arg-type]

    def place(self, state: State) -> State:
        """Move each shard of a state to its device."""
        return jax.tree.map(device_put, state, self._shardings(state))

    def constrain(self, step: Step) -> Step:
        """Make a step return its state with the stored sharding."""

        def constrained(state: State, position: Position) -> tuple[State, Logs]:
            state, logs = step(state, position)
            return jax.lax.with_sharding_constraint(state, self._shardings(state)), logs

        return constrained

    def on_gathered_weights(self, step: Step) -> Step:
        """Gather the weights for a step that XLA partitions."""
        replicated = NamedSharding(self.mesh, REPLICATED)

        def gathering_step(state: State, position: Position) -> tuple[State, Logs]:
            whole = jax.lax.with_sharding_constraint(state.trainable, replicated)
            return step(state._replace(trainable=whole), position)

        return self.constrain(gathering_step)

    def gather_around(self, step: GradientStep) -> GradientStep:
        """Gather the weights before a step that runs on each replica."""

        def gathering_step(state: State, position: Position) -> tuple[State, Arrays, Logs]:
            whole = state._replace(trainable=self.gather(state.trainable))
            new, gradients, logs = step(whole, position)
            return new._replace(trainable=state.trainable), gradients, logs

        return gathering_step

    def gather(self, shards: Arrays) -> Arrays:
        """All-gather weights; in the backward pass, their gradients are reduce-scattered."""
        return [
            shard
            if (axis := _axis(spec)) is None
            else jax.lax.all_gather(shard, AXIS, axis=axis, tiled=True)
            for shard, spec in zip(shards, self.trainable, strict=True)
        ]

    def scatter(self, reduce: Reduce, reduction: Reduction, are_summed: bool) -> Reduce:
        """Return a function that reduce-scatters each gradient to the replica's shard.

        Args:
            reduce: function that reduces the gradients that are not sharded.
            reduction: `"mean"` or `"sum"`.
            are_summed: whether the gradients are already summed and sharded.
        """

        def scatter_one(gradient: jax.Array, axis: int) -> jax.Array:
            if not are_summed:
                gradient = jax.lax.psum_scatter(gradient, AXIS, scatter_dimension=axis, tiled=True)
            return gradient / self.mesh.size if reduction == "mean" else gradient

        def scattering(gradients: Arrays, others: PyTree) -> tuple[Arrays, PyTree]:
            axes = [_axis(spec) for spec in self.gradients]
            both = list(zip(gradients, axes, strict=True))
            reduced, sums = reduce([one for one, axis in both if axis is None], others)
            whole = iter(reduced)
            shards = [next(whole) if axis is None else scatter_one(one, axis) for one, axis in both]
            return shards, sums

        return scattering

    def _shardings(self, state: State) -> State:
        """Return the sharding of each array of a state."""

        def shardings(spec: PartitionSpec | Specs, part: Arrays) -> list[NamedSharding]:
            specs = [spec] * len(part) if isinstance(spec, PartitionSpec) else spec
            return [NamedSharding(self.mesh, one) for one in specs]

        return State(*map(shardings, self.specs, state))  # type: ignore[arg-type]


def _axis(spec: PartitionSpec) -> int | None:
    """Return the axis by which an array is sharded, or `None`."""
    return tuple(spec).index(AXIS) if AXIS in tuple(spec) else None


def _spec(shape: tuple[int, ...], replicas: int) -> PartitionSpec:
    """Shard the largest axis that the number of replicas divides, if there is one."""
    fitting = [axis for axis, size in enumerate(shape) if size % replicas == 0]
    if not fitting or prod(shape) <= REPLICATED_ELEMENTS:
        return REPLICATED
    widest = max(fitting, key=lambda axis: shape[axis])
    return PartitionSpec(*(AXIS if axis == widest else None for axis in range(len(shape))))
