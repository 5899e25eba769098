"""Optimizers that say how gradients are put together before another one updates the weights.

They are for `model.compile` under an `IPUStrategy`, and for estimators.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import convoy
import keras
from convoy.engine.prepared_model import GradientMap
from convoy.ipu import notice
from convoy.ipu.accumulation import Accumulation, check_offload, read_dtype
from convoy.ipu.enums import GradientAccumulationReductionMethod


@dataclass(frozen=True)
class Wishes:
    """What optimizers that are wrapped into each other say together.

    Attributes:
        optimizer: the innermost, which updates the weights.
        reduction: of gradients over replicas; `None` is the strategy's.
        accumulation: of gradients over micro-batches; `None` is the model's.
        loss_scale: `None` is none.
        gradient_map: changes the gradients of every micro-batch; `None` leaves them.
    """

    optimizer: Any
    reduction: Literal["sum", "mean"] | None = None
    accumulation: Accumulation | None = None
    loss_scale: convoy.AutomaticLossScale | None = None
    gradient_map: GradientMap | None = None


@dataclass(frozen=True)
class TrainOp:
    """A loss, and what makes it smaller."""

    optimizer: Any
    loss: Any


class IpuOptimizer:
    """Wraps an optimizer.

    Args:
        opt: what updates the weights: an optimizer of Keras's, its name, or another one of these.
        name: has no effect.
    """

    def __init__(self, opt: Any, name: str | None = None) -> None:
        self.opt = opt
        self.name = name or type(self).__name__

    def minimize(self, loss: Any) -> TrainOp:
        """Return what an estimator is told to do: to make the loss smaller."""
        return TrainOp(self, loss)

    def compiled_with(self, model: keras.Model) -> None:
        """Take note of the model that is updated."""
        if isinstance(self.opt, IpuOptimizer):
            self.opt.compiled_with(model)

    def wishes(self) -> Wishes:
        """Return what this one and those that it wraps say."""
        return read(self.opt)


class CrossReplicaOptimizer(IpuOptimizer):
    """Takes the mean of the gradients over replicas."""

    def wishes(self) -> Wishes:
        return replace(super().wishes(), reduction="mean")


class GradientAccumulationOptimizerV2(IpuOptimizer):
    """Puts together the gradients of several micro-batches.

    Args:
        opt: what updates the weights.
        num_mini_batches: micro-batches of a weight update.
        offload_weight_update_variables: has no effect.
        replicated_optimizer_state_sharding: has no effect.
        dtype: in which gradients are added up; by default their own.
        reduction_method: `SUM`, `MEAN` or `RUNNING_MEAN`.
        name: has no effect.
    """

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: str | GradientAccumulationReductionMethod = "sum",
        name: str | None = None,
    ) -> None:
        super().__init__(opt, name)
        if type(num_mini_batches) is not int or num_mini_batches < 1:
            raise ValueError(
                f"num_mini_batches={num_mini_batches!r} is not a number of micro-batches. Pass an "
                "int of 1 or more."
            )
        ignored = {
            "offload_weight_update_variables": offload_weight_update_variables,
            "replicated_optimizer_state_sharding": replicated_optimizer_state_sharding,
        }
        check_offload(ignored)
        notice.without_effect([n for n, value in ignored.items() if value], type(self).__name__)
        self.accumulation = Accumulation(
            num_mini_batches,
            GradientAccumulationReductionMethod.parse(reduction_method),
            read_dtype("dtype", {"dtype": dtype}),
        )

    def wishes(self) -> Wishes:
        return replace(super().wishes(), accumulation=self.accumulation)


class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """Puts together the gradients of several micro-batches, then takes the mean over replicas."""

    def wishes(self) -> Wishes:
        return replace(super().wishes(), reduction="mean")


class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """Adds up the gradients of several micro-batches."""

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str | None = None,
    ) -> None:
        del verify_usage
        super().__init__(opt, num_mini_batches, name=name)


class CrossReplicaGradientAccumulationOptimizer(GradientAccumulationOptimizer):
    """Adds up the gradients of several micro-batches, then takes the mean over replicas."""

    def wishes(self) -> Wishes:
        return replace(super().wishes(), reduction="mean")


class MapGradientOptimizer(IpuOptimizer):
    """Has a function change the gradients of every micro-batch, before they are put together.

    Args:
        wrapped_optimizer: what updates the weights.
        gradient_mapping_function: takes a gradient and its variable, and returns what takes the
            gradient's place.
        name: has no effect.
    """

    def __init__(
        self,
        wrapped_optimizer: Any,
        gradient_mapping_function: GradientMap,
        name: str | None = None,
    ) -> None:
        super().__init__(wrapped_optimizer, name)
        self.gradient_mapping_function = gradient_mapping_function

    def wishes(self) -> Wishes:
        inner = super().wishes()
        first, second = inner.gradient_map, self.gradient_mapping_function
        if first is None:
            return replace(inner, gradient_map=second)
        return replace(inner, gradient_map=lambda g, variable: second(first(g, variable), variable))


class ShardedOptimizer(IpuOptimizer):
    """Has no effect: gradients are computed where their weights are."""


def read(optimizer: Any) -> Wishes:
    """Return what an optimizer says, whether it is one of these or not."""
    return optimizer.wishes() if isinstance(optimizer, IpuOptimizer) else Wishes(optimizer)
