"""The weight update of the stages on one device, with its own part of the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from convoy import keras_bridge
from convoy.engine.plan import Plan
from convoy.engine.replicate import AXIS, EVERYWHERE

Arrays = list[jax.Array]


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Refuse an optimizer whose update cannot be divided over stages.

    Raises:
        ValueError: if it scales the loss, or accumulates gradients by itself.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor:
        raise ValueError(
            f"The optimizer {optimizer.name!r} scales the loss, which a pipeline does not do yet. "
            "Compile with auto_scale_loss=False, in 'bf16.32' or 'float32'."
        )
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            f"The optimizer {optimizer.name!r} accumulates gradients by itself. A pipeline does so "
            "anyway: pass gradient_accumulation to the strategy instead."
        )


class DeviceUpdate:
    """Updates the weights of all stages on one device of the pipeline.

    Args:
        optimizer: the model's.
        trainable: the variables that live here.
        mesh: the same device of all replicas; `None` if there is one replica.
        plan: how gradients are reduced.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        trainable: list[keras.Variable],
        mesh: jax.sharding.Mesh | None,
        plan: Plan,
    ) -> None:
        self.clip = optimizer.global_clipnorm
        self.optimizer = keras_bridge.optimizer_for(optimizer, trainable, global_clipnorm=None)
        self.reduction = plan.reduction
        self.mesh = mesh
        by_name = {variable.name: variable for variable in optimizer.variables}
        self.variables = [by_name[variable.name] for variable in self.optimizer.variables]
        """Those of the model's optimizer that this update reads and writes, in its own order."""
        self.reduce = jax.jit(self._everywhere(self._reduce), donate_argnums=0)
        self.apply = jax.jit(self._everywhere(self._apply), donate_argnums=(0, 1, 2))

    def _everywhere(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.mesh is None:
            return function
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=EVERYWHERE, out_specs=EVERYWHERE, check_vma=False
        )

    def _reduce(self, total: Arrays, statistics: Arrays) -> tuple[Arrays, Arrays, jax.Array]:
        """Reduce gradients and statistics over replicas; return the squared norm too."""
        if self.mesh is not None:
            over = jax.lax.pmean if self.reduction == "mean" else jax.lax.psum
            total = [over(gradient, AXIS) for gradient in total]
            statistics = [_mean(value) for value in statistics]
        squares = [jnp.sum(jnp.square(g.astype(jnp.float32))) for g in total]
        return total, statistics, sum(squares, jnp.float32(0))

    def _apply(
        self, total: Arrays, own: Arrays, trainable: Arrays, squared_norm: jax.Array
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Return weights, the optimizer's state, and accumulators that start from nothing."""
        gradients = total
        if self.clip is not None:
            norm = jnp.sqrt(squared_norm)
            factor = self.clip / jnp.maximum(norm, self.clip)
            gradients = [gradient * factor.astype(gradient.dtype) for gradient in total]
        trainable, own = self.optimizer.stateless_apply(own, gradients, trainable)
        return trainable, own, [jnp.zeros_like(gradient) for gradient in total]


def _mean(value: jax.Array) -> jax.Array:
    floating = jnp.issubdtype(value.dtype, jnp.floating)
    return jax.lax.pmean(value, AXIS) if floating else value
