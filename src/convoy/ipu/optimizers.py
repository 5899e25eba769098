"""Optimizers that wrap another one, and set how gradients are accumulated and reduced.

They are for `model.compile` under an `IPUStrategy`, and for estimators.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import convoy
import keras
from convoy.arguments import whole_number
from convoy.engine.prepared_model import GradientMap
from convoy.engine.step.all_reduce import Reduction
from convoy.ipu import notice
from convoy.ipu.enums import GradientAccumulationReductionMethod
from convoy.ipu.gradient_accumulation import Accumulation, check_offload, read_dtype


@dataclass(frozen=True)
class GradientOptions:
    """The options of a chain of wrapped optimizers.

    Attributes:
        optimizer: the innermost one, which updates the weights.
        reduction: reduction of gradients over replicas; by default that of the strategy.
        accumulation: gradient accumulation; by default that of the model.
        loss_scale: automatic loss scaling, if there is any.
        gradient_map: a function that changes the gradients of every micro-batch.
    """

    optimizer: Optimizer | None
    reduction: Reduction | None = None
    accumulation: Accumulation | None = None
    loss_scale: convoy.AutomaticLossScale | None = None
    gradient_map: GradientMap | None = None


@dataclass(frozen=True)
class TrainOp:
    """A loss, and the optimizer that minimises it."""

    optimizer: Optimizer
    loss: keras.KerasTensor


class IpuOptimizer:
    """A wrapper around an optimizer.

    Args:
        opt: a Keras optimizer, its name, or another wrapper.
        name: no effect.
    """

    def __init__(self, opt: Optimizer, name: str | None = None) -> None:
        self.opt = opt
        self.name = name or type(self).__name__

    def minimize(self, loss: keras.KerasTensor) -> TrainOp:
        """Return the training operation of an estimator."""
        return TrainOp(self, loss)

    def attach(self, model: keras.Model) -> None:
        """Set the model that is compiled with this optimizer."""
        if isinstance(self.opt, IpuOptimizer):
            self.opt.attach(model)

    def options(self) -> GradientOptions:
        """Return the options of this wrapper and those inside it."""
        return gradient_options(self.opt)


Optimizer: TypeAlias = keras.optimizers.Optimizer | IpuOptimizer | str


def gradient_options(optimizer: Optimizer | None) -> GradientOptions:
    """Return the options of an optimizer, wrapped or not; `None` has no options."""
    return (
        optimizer.options() if isinstance(optimizer, IpuOptimizer) else GradientOptions(optimizer)
    )


def check_reduced(what: str, replicas: int, is_reduced: bool) -> None:
    """Raise `ValueError` if the gradients of several replicas are not reduced."""
    if replicas > 1 and not is_reduced:
        raise ValueError(
            f"{what} is trained on {replicas} replicas, but their gradients are not reduced. Wrap "
            "the optimizer in ipu.optimizers.CrossReplicaOptimizer."
        )


class CrossReplicaOptimizer(IpuOptimizer):
    """Takes the mean of the gradients over replicas."""

    def options(self) -> GradientOptions:
        return replace(super().options(), reduction="mean")


class GradientAccumulationOptimizerV2(IpuOptimizer):
    """Accumulates the gradients of several micro-batches.

    Args:
        opt: the optimizer that updates the weights.
        num_mini_batches: micro-batches per weight update.
        offload_weight_update_variables: no effect.
        replicated_optimizer_state_sharding: no effect.
        dtype: dtype of the accumulated gradients; by default their own.
        reduction_method: `SUM`, `MEAN` or `RUNNING_MEAN`.
        name: no effect.
    """

    def __init__(
        self,
        opt: Optimizer,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: object = None,
        reduction_method: str | GradientAccumulationReductionMethod = "sum",
        name: str | None = None,
    ) -> None:
        super().__init__(opt, name)
        whole_number("num_mini_batches", num_mini_batches, "a number of micro-batches")
        ignored = {
            "offload_weight_update_variables": offload_weight_update_variables,
            "replicated_optimizer_state_sharding": replicated_optimizer_state_sharding,
        }
        check_offload(ignored)
        notice.no_effect(type(self).__name__, ignored)
        self.accumulation = Accumulation(
            num_mini_batches,
            GradientAccumulationReductionMethod.parse(reduction_method),
            read_dtype("dtype", dtype),
        )

    def options(self) -> GradientOptions:
        return replace(super().options(), accumulation=self.accumulation)


class CrossReplicaGradientAccumulationOptimizerV2(
    CrossReplicaOptimizer, GradientAccumulationOptimizerV2
):
    """Accumulates the gradients of several micro-batches, then takes the mean over replicas."""


class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """Adds up the gradients of several micro-batches."""

    def __init__(
        self,
        opt: Optimizer,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(opt, num_mini_batches, name=name)


class CrossReplicaGradientAccumulationOptimizer(
    CrossReplicaOptimizer, GradientAccumulationOptimizer
):
    """Adds up the gradients of several micro-batches, then takes the mean over replicas."""


class MapGradientOptimizer(IpuOptimizer):
    """Changes the gradients of every micro-batch by a function, before they are accumulated.

    Args:
        wrapped_optimizer: the optimizer that updates the weights.
        gradient_mapping_function: a function of a gradient and its variable that returns the new
            gradient.
        name: no effect.
    """

    def __init__(
        self,
        wrapped_optimizer: Optimizer,
        gradient_mapping_function: GradientMap,
        name: str | None = None,
    ) -> None:
        super().__init__(wrapped_optimizer, name)
        self.gradient_mapping_function = gradient_mapping_function

    def options(self) -> GradientOptions:
        inner = super().options()
        first, second = inner.gradient_map, self.gradient_mapping_function
        if first is None:
            return replace(inner, gradient_map=second)
        return replace(inner, gradient_map=lambda g, variable: second(first(g, variable), variable))


class ShardedOptimizer(IpuOptimizer):
    """Has no effect: gradients are computed on the devices of their weights."""
