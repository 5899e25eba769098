"""The weight update of the stages on one device, with its own part of the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.numerics.loss_scale import all_finite, unscale
from convoy.engine.numerics.numerics import Settings, pack, split_key, unpack
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.step.all_reduce import is_floating, mean, reducer
from convoy.engine.step.replicate import EVERYWHERE
from convoy.engine.step.update import apply_rounding

Arrays = list[jax.Array]


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Refuse an optimizer whose update cannot be divided over stages.

    Raises:
        ValueError: if it scales the loss, or accumulates gradients by itself, or clips them inside
            of another one.
    """
    inner = getattr(optimizer, "optimizer", None)
    while isinstance(inner, keras.optimizers.Optimizer):
        if inner.global_clipnorm is not None:
            raise ValueError(
                f"The optimizer {inner.name!r} inside of {optimizer.name!r} has global_clipnorm="
                f"{inner.global_clipnorm}, a norm over all stages, which it cannot see. Use "
                "clipnorm, or train the model without stages."
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
            f"The optimizer {optimizer.name!r} accumulates gradients by itself. A pipeline does so "
            "anyway: pass gradient_accumulation to the strategy instead."
        )


class DeviceUpdate:
    """Updates the weights of all stages at one place of the pipeline.

    Args:
        model: whose weights they are.
        trainable: the variables that live here.
        optimizer: for these alone.
        slots: the places of its variables among those of the model's optimizer.
        mesh: the same device of all replicas; `None` if there is one replica.
        config: how gradients are added up and reduced.
    """

    def __init__(
        self,
        model: keras.Model,
        trainable: list[keras.Variable],
        optimizer: keras.optimizers.Optimizer,
        slots: list[int],
        mesh: jax.sharding.Mesh | None,
        config: ExecutionConfig,
    ) -> None:
        self.clip = model.optimizer.global_clipnorm
        self.optimizer = optimizer
        self.settings = PreparedModel.of(model).numerics.settings
        self.over_replicas = reducer(config.reduction, config.reduction_bucket)
        self.mesh = mesh
        self.dtypes = [config.accumulation.dtype or variable.dtype for variable in trainable]
        self.variables = [model.optimizer.variables[slot] for slot in slots]
        """Those of the model's optimizer that this update reads and writes, in its own order."""
        self.places = _places(trainable, model.trainable_variables), slots
        self.reduce = jax.jit(self._everywhere(self._reduce), donate_argnums=0)
        self.apply = jax.jit(self._everywhere(self._apply), donate_argnums=(0, 1, 2))

    def _everywhere(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.mesh is None:
            return function
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=EVERYWHERE, out_specs=EVERYWHERE, check_vma=False
        )

    def _reduce(
        self, total: Arrays, statistics: Arrays, factor: jax.Array | None
    ) -> tuple[Arrays, Arrays, jax.Array, jax.Array | None]:
        """Reduce gradients and statistics over replicas, and undo the scale of the loss.

        Returns them, the squared norm of the gradients, and whether all are finite, if the loss was
        scaled.
        """
        if self.mesh is not None:
            moving = [value if is_floating(value) else None for value in statistics]
            total, sums = self.over_replicas(total, moving)
            statistics = [mean(*both) for both in zip(statistics, sums, strict=True)]
        finite = None
        if factor is not None:
            finite, total = all_finite(total), unscale(total, factor)
        squares = [jnp.sum(jnp.square(g.astype(jnp.float32))) for g in total]
        return total, statistics, sum(squares, jnp.float32(0)), finite

    def _apply(
        self,
        total: Arrays,
        own: Arrays,
        trainable: Arrays,
        squared_norm: jax.Array,
        finite: jax.Array | None,
        key: jax.Array | None,
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Return weights, the optimizer's state, and accumulators that start from nothing."""

        def updated() -> tuple[Arrays, Arrays]:
            if not trainable:
                return [], []
            gradients = total
            if self.clip is not None:
                norm = jnp.sqrt(squared_norm)
                factor = self.clip / jnp.maximum(norm, self.clip)
                gradients = [gradient * factor.astype(gradient.dtype) for gradient in total]
            if self.settings.rounds and key is not None:
                _, use = split_key(key)
                new = apply_rounding(self.optimizer, own, gradients, trainable, use, self.places)
            else:
                new = self.optimizer.stateless_apply(own, gradients, trainable)
            before = (trainable, own)
            return jax.tree.map(lambda n, o: jnp.asarray(n, o.dtype), tuple(new), before)

        new = (
            updated() if finite is None else jax.lax.cond(finite, updated, lambda: (trainable, own))
        )
        zeros = [jnp.zeros(g.shape, t) for g, t in zip(total, self.dtypes, strict=True)]
        return *new, zeros


def advance(settings: Settings) -> Callable[[Arrays, Arrays, Arrays, Arrays], Arrays]:
    """Return what carries loss scale and random key on to the next update.

    It takes their values, the large and all elements that every stage has counted, and whether the
    gradients at each place were finite.
    """

    def advanced(values: Arrays, large: Arrays, counted: Arrays, finites: Arrays) -> Arrays:
        scaling, key = unpack(values)
        finite = jnp.bool_(True)
        for one in finites:
            finite &= one
        if settings.rounds:
            key = jnp.where(finite, split_key(key)[0], key)
        if settings.loss_scale is not None:
            scaling = scaling._replace(
                large=sum(large, scaling.large), counted=sum(counted, scaling.counted)
            )
            scaling = settings.loss_scale.decide(scaling, finite)
        return pack(scaling, key)

    return jax.jit(advanced)


def _places(some: list[keras.Variable], everything: list[keras.Variable]) -> list[int]:
    where = {id(variable): place for place, variable in enumerate(everything)}
    return [where[id(variable)] for variable in some]
