"""The weight update of a pipeline: each rank updates the weights of its own stages."""

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import distributed, keras_bridge
from convoy.engine.data.placement import REPLICATED, device_put
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.numerics.loss_scale import all_finite, unscale
from convoy.engine.numerics.numerics import Numerics, Settings, pack, split_key, unpack
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.step.all_reduce import is_floating, mean, reducer
from convoy.engine.step.replicate import over_replicas
from convoy.engine.step.update import apply_rounding
from convoy.pipeline.communication import move
from convoy.pipeline.device_layout import DeviceGroup, DeviceLayout, ReplicaValues
from convoy.pipeline.runner.stage_program import GradientCounts
from convoy.types import Arrays, PyTree


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Reject an optimizer whose update cannot be divided over stages.

    Raises:
        ValueError: if the optimizer scales the loss or accumulates gradients by itself, or an inner
            optimizer clips them by a global norm.
    """
    inner = getattr(optimizer, "optimizer", None)
    while isinstance(inner, keras.optimizers.Optimizer):
        if inner.global_clipnorm is not None:
            raise ValueError(
                f"The optimizer {inner.name!r} inside of {optimizer.name!r} has "
                f"global_clipnorm={inner.global_clipnorm}, but cannot compute a norm over all "
                "stages. Use clipnorm, or train the model without stages."
            )
        inner = getattr(inner, "optimizer", None)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor:
        raise ValueError(
            f"The optimizer {optimizer.name!r} scales the loss by itself (Keras adds that under "
            "mixed_float16), which cannot be divided over stages. Pass loss_scale='auto' or a "
            "number to the strategy instead, or auto_scale_loss=False to compile()."
        )
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            f"The optimizer {optimizer.name!r} accumulates gradients by itself, but a pipeline "
            "already accumulates them. Pass gradient_accumulation to the strategy instead."
        )


class RankUpdate:
    """Compiled update of the weights on one rank, with its part of the optimizer.

    Args:
        model: model in stages.
        trainable: trainable variables on this rank.
        statistics: non-trainable variables on this rank.
        optimizer: optimizer for these trainable variables.
        slots: indices of its variables among those of the model's optimizer.
        mesh: devices of this rank in all replicas; `None` if there is one replica.
        config: configuration of gradient accumulation and reduction.
    """

    def __init__(
        self,
        model: keras.Model,
        trainable: list[keras.Variable],
        statistics: list[keras.Variable],
        optimizer: keras.optimizers.Optimizer,
        slots: list[int],
        mesh: jax.sharding.Mesh | None,
        config: ExecutionConfig,
    ) -> None:
        self.trainable, self.statistics = trainable, statistics
        self.global_clipnorm: float | None = model.optimizer.global_clipnorm
        self.optimizer = optimizer
        self.settings = PreparedModel.of(model).numerics.settings
        self.over_replicas = reducer(config.reduction, config.reduction_bucket)
        self.mesh = mesh
        self.dtypes = [config.accumulation_dtype or variable.dtype for variable in trainable]
        self.variables = [model.optimizer.variables[slot] for slot in slots]
        """The variables of the model's optimizer that this update reads and writes, in order."""
        indices = {id(variable): i for i, variable in enumerate(model.trainable_variables)}
        self.places = [indices[id(variable)] for variable in trainable], slots
        programs: Sequence[Callable[..., PyTree]] = self._reduce, self._apply
        if mesh is not None:
            programs = [over_replicas(one, mesh, REPLICATED, REPLICATED) for one in programs]
        self.reduce = jax.jit(programs[0], donate_argnums=0)
        self.apply = jax.jit(programs[1], donate_argnums=(0, 1, 2))

    # There are two programs, because ranks exchange the two scalars of `PipelineUpdate` between
    # them. Both donate the arrays that they replace, so that gradients, weights and slots are
    # stored once.

    def _reduce(
        self, accumulators: Arrays, statistics: Arrays, loss_scale: jax.Array | None
    ) -> tuple[Arrays, Arrays, jax.Array, jax.Array | None]:
        """Reduce gradients and statistics over replicas, and divide by the loss scale.

        Returns:
            The gradients, the statistics, the squared norm of the gradients, and whether all
            gradients are finite, if the loss was scaled.
        """
        gradients = accumulators
        if self.mesh is not None:
            floating = [value if is_floating(value) else None for value in statistics]
            gradients, sums = self.over_replicas(gradients, floating)
            statistics = [mean(*both) for both in zip(statistics, sums, strict=True)]
        finite = None
        if loss_scale is not None:
            finite, gradients = all_finite(gradients), unscale(gradients, loss_scale)
        squares = [jnp.sum(jnp.square(g.astype(jnp.float32))) for g in gradients]
        return gradients, statistics, sum(squares, jnp.float32(0)), finite

    def _apply(
        self,
        gradients: Arrays,
        slots: Arrays,
        trainable: Arrays,
        squared_norm: jax.Array,
        finite: jax.Array | None,
        key: jax.Array | None,
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Return the new weights, the optimizer's new state, and accumulators of zeros."""

        def updated() -> tuple[Arrays, Arrays]:
            if not trainable:
                return [], []
            clipped = gradients
            if self.global_clipnorm is not None:
                norm = jnp.sqrt(squared_norm)
                shrink = self.global_clipnorm / jnp.maximum(norm, self.global_clipnorm)
                clipped = [gradient * shrink.astype(gradient.dtype) for gradient in gradients]
            if self.settings.rounds and key is not None:
                _, use = split_key(key)
                new = apply_rounding(self.optimizer, slots, clipped, trainable, use, self.places)
            else:
                new = self.optimizer.stateless_apply(slots, clipped, trainable)
            before = (trainable, slots)
            return jax.tree.map(lambda n, o: jnp.asarray(n, o.dtype), tuple(new), before)

        new = (
            updated()
            if finite is None
            else jax.lax.cond(finite, updated, lambda: (trainable, slots))
        )
        # The accumulators of the next update, in the memory of the gradients, which are donated.
        zeros = [jnp.zeros(g.shape, t) for g, t in zip(gradients, self.dtypes, strict=True)]
        return *new, zeros


def make_advance(settings: Settings) -> Callable[[Arrays, Arrays, Arrays, Arrays], Arrays]:
    """Return a function that advances the loss scale and the random key after an update.

    It takes their values, the counts of large and of all gradient elements of every stage, and
    whether the gradients of each rank were finite.
    """

    def advance(values: Arrays, large: Arrays, counted: Arrays, finites: Arrays) -> Arrays:
        state, key = unpack(values)
        finite = jnp.bool_(True)
        for one in finites:
            finite &= one
        if settings.rounds:
            key = jnp.where(finite, split_key(key)[0], key)
        if settings.loss_scaling is not None:
            state = state._replace(
                large=sum(large, state.large), counted=sum(counted, state.counted)
            )
            state = settings.loss_scaling.decide(state, finite)
        return pack(state, key)

    return jax.jit(advance)


class PipelineUpdate:
    """The weight updates of one device call, on all ranks of this process.

    Args:
        layout: stages and their devices.
        rank_updates: compiled update of each rank.
        numerics: loss scale and rounding.
        advance: function of `make_advance`.
        sharded: whether replicas had different data; otherwise all replicas have the same counts.
    """

    # Every rank has the optimizer's slots of its own weights only, and updates them by itself.
    # Ranks depend on each other only through two scalars, exchanged between the two programs: the
    # squared norm of the gradients for `global_clipnorm`, and whether all gradients are finite. If
    # one of them is not, no rank applies its update, and all ranks reduce the loss scale in the
    # same way.
    #
    #     rank 0   reduce --- squared norm, finite ---+      +---> apply
    #     rank 1   reduce --- squared norm, finite ---+-all--+---> apply
    #     rank 2   reduce --- squared norm, finite ---+      +---> apply

    def __init__(
        self,
        layout: DeviceLayout,
        rank_updates: Sequence[RankUpdate],
        numerics: Numerics,
        advance: Callable[[Arrays, Arrays, Arrays, Arrays], Arrays],
        *,
        sharded: bool,
    ) -> None:
        self.layout, self.rank_updates = layout, rank_updates
        self.numerics, self.advance, self.sharded = numerics, advance, sharded
        self.optimizer = {
            rank: [group.put(x) for x in keras_bridge.values(rank_updates[rank].variables)]
            for rank, group in layout.local_groups
        }
        """The optimizer's state on each rank."""
        common = layout.common_group
        self.values = [
            next(iter(common.split(value).values()))
            for value in keras_bridge.values(numerics.variables)
        ]
        """Loss scale and random key, on one device of this process."""
        self._begin_counting()

    def _begin_counting(self) -> None:
        """Copy the loss scale to all devices, and set the counts of large gradients to zero."""
        layout = self.layout
        scaled = self.numerics.settings.loss_scaling is not None
        loss_scale = self.numerics.loss_scale(self.values)
        self._loss_scales = (
            {rank: group.put(loss_scale) for rank, group in layout.local_groups}
            if loss_scale is not None
            else {}
        )
        # Large elements and all elements of each stage's gradients; without loss scaling, nothing.
        self.counts: dict[tuple[int, int], GradientCounts] = {}
        for stage, rank in enumerate(layout.mapping):
            for replica, device in layout.groups[rank].devices.items():
                zeros = [device_put(np.float32(0), device) for _ in range(2 * scaled)]
                self.counts[replica, stage] = tuple(zeros)

    @property
    def is_scaled(self) -> bool:
        return bool(self._loss_scales)

    def loss_scale(self, rank: int, replica: int) -> jax.Array | None:
        """Return the loss scale on a device; `None` if the loss is not scaled."""
        if not self._loss_scales:
            return None
        return self.layout.groups[rank].split(self._loss_scales[rank])[replica]

    def run(self, values: ReplicaValues, accumulators: ReplicaValues) -> None:
        """Update weights and statistics in `values`, and set the accumulators to zero."""
        gradients: dict[int, Arrays] = {}
        squared_norms: dict[int, jax.Array] = {}
        finites: dict[int, jax.Array] = {}
        for rank, group in self.layout.local_groups:
            update = self.rank_updates[rank]
            gradients[rank], means, squared_norms[rank], finite = update.reduce(
                [joined(accumulators, variable, group) for variable in update.trainable],
                [joined(values, variable, group) for variable in update.statistics],
                self._loss_scales.get(rank),
            )
            for variable, value in zip(update.statistics, means, strict=True):
                _store(values, variable, group, value)
            if finite is not None:
                finites[rank] = finite
        # All ranks add the scalars in the same order, so that the results have the same bits.
        if self.rank_updates[0].global_clipnorm is not None:
            norms = self._all_gather(squared_norms)
            squared_norms = {rank: sum(found[1:], found[0]) for rank, found in norms.items()}
        if self.is_scaled:
            gathered = self._all_gather(finites)
            finites = {rank: jnp.stack(found).all() for rank, found in gathered.items()}
        key = self.values[-1] if self.values else None
        for rank, group in self.layout.local_groups:
            update = self.rank_updates[rank]
            weights, self.optimizer[rank], zeros = update.apply(
                gradients[rank],
                self.optimizer[rank],
                [joined(values, variable, group) for variable in update.trainable],
                squared_norms[rank],
                finites.get(rank),
                None if key is None else group.put(key),
            )
            for variable, weight, zero in zip(update.trainable, weights, zeros, strict=True):
                _store(values, variable, group, weight)
                _store(accumulators, variable, group, zero)
        if self.values:
            self._advance(values, finites)

    def _all_gather(self, scalars: dict[int, jax.Array]) -> dict[int, Arrays]:
        """Return for every rank in this process the scalars of all ranks, in their order."""
        layout, groups = self.layout, self.layout.groups
        split = {rank: groups[rank].split(scalar) for rank, scalar in scalars.items()}
        like = next(iter(scalars.values()))
        shapes = [jax.ShapeDtypeStruct(like.shape, like.dtype)]
        # All processes iterate over the same pairs of ranks in the same order, even if they own
        # neither rank, because transfers between two processes are numbered by counting them.
        gathered: dict[int, Arrays] = {rank: [] for rank, _ in layout.local_groups}
        for source, target in itertools.product(range(len(groups)), repeat=2):
            arrived = {}
            for replica in layout.replicas:
                ends = layout.device(replica, source), layout.device(replica, target)
                own = split.get(source, {})
                values = [own[replica]] if replica in own else None
                for value in move(values, shapes, *ends):
                    arrived[replica] = value
            if arrived:
                gathered[target].append(groups[target].join(arrived))
        return gathered

    def _advance(self, values: ReplicaValues, finites: dict[int, jax.Array]) -> None:
        """Advance the loss scale for the next update, in every process alike."""
        layout = self.layout
        counts = [
            count
            for (replica, _), count in self.counts.items()
            if count and (self.sharded or replica == 0)
        ]
        if layout.placement.spans_processes and self.is_scaled:
            self.wait(values)
            own = np.array([list(map(np.asarray, count)) for count in counts] or np.zeros((1, 2)))
            totals = distributed.totals(list(own.sum(axis=0, dtype=np.float32)))
            counts = [tuple(jnp.asarray(total) for total in totals)]
        own_finites = [
            next(iter(layout.groups[rank].split(finite).values()))
            for rank, finite in finites.items()
        ]
        device = layout.common_group.first_device
        moved, counts, own_finites = device_put((self.values, counts, own_finites), device)
        large, counted = ([count[i] for count in counts] for i in range(2))
        self.values = self.advance(moved, large, counted, own_finites)
        self._begin_counting()

    def wait(self, values: ReplicaValues) -> None:
        """Wait for all dispatched programs of this process, before a collective call.

        The collective call blocks the thread that computes, and other processes may need its
        results.
        """
        if self.layout.placement.crosses_processes:
            jax.block_until_ready((values, self.optimizer))

    def write_back(self) -> None:
        """Assign the optimizer's state, the loss scale and the random key to their variables."""
        for rank, _ in self.layout.local_groups:
            keras_bridge.assign(self.rank_updates[rank].variables, self.optimizer[rank])
        common = self.layout.common_group
        keras_bridge.assign(self.numerics.variables, [common.put(value) for value in self.values])


def joined(values: ReplicaValues, variable: keras.Variable, group: DeviceGroup) -> jax.Array:
    """Return the values of a variable on all replicas as one array."""
    return group.join({replica: values[replica][id(variable)] for replica in group.devices})


def _store(
    values: ReplicaValues, variable: keras.Variable, group: DeviceGroup, value: jax.Array
) -> None:
    for replica, own in group.split(value).items():
        values[replica][id(variable)] = own
