"""Optimizers for Keras models: gradient accumulation and automatic loss scaling."""

from dataclasses import replace
from typing import Any

import convoy
import keras
import numpy as np
from convoy.arguments import whole_number
from convoy.engine.numerics.loss_scale import LossScaleState
from convoy.engine.prepared_model import PreparedModel
from convoy.ipu.optimizers import (
    GradientAccumulationOptimizerV2,
    GradientOptions,
    IpuOptimizer,
    Optimizer,
)

__all__ = ["ALSGradientAccumulationOptimizer", "ALSOptimizer", "GradientAccumulationOptimizer"]


class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """Accumulates the gradients of several micro-batches; for one, it is the optimizer itself."""

    def __new__(cls, opt: Optimizer, num_mini_batches: int, *args: Any, **kwargs: Any) -> Any:
        return opt if num_mini_batches == 1 else super().__new__(cls)


class ALSOptimizer(IpuOptimizer):
    """Automatic loss scaling: the factor follows the magnitude of the gradients.

    Args:
        opt: the optimizer that updates the weights.
        initial_loss_scaling_factor: initial factor; a power of two.
        update_frequency: weight updates between two changes of the factor.
        increase_factor: multiplier or divisor of the factor at a change; a power of two.
        max_loss_scaling_factor: upper bound of the factor; a power of two.
        accumulate_statistics_over_update_period: only the default is supported.
        ratio_threshold: ratio of large gradients at which the factor is decreased.
        captured_grads_only: whether only the gradients that a layer of `ipu.keras.layers` captures
            count; not supported with pipeline stages.
        lpf_alpha: only 0 is supported: statistics are reset at each change.
        histogram_bin_edge: magnitude from which a gradient counts as large.
        name: no effect.
    """

    def __init__(
        self,
        opt: Optimizer,
        initial_loss_scaling_factor: float = 1,
        update_frequency: int = 8,
        increase_factor: float = 2,
        max_loss_scaling_factor: float = 32768,
        accumulate_statistics_over_update_period: bool = True,
        ratio_threshold: float = 10e-6,
        captured_grads_only: bool = False,
        lpf_alpha: float = 0.0,
        histogram_bin_edge: float = 2**13,
        name: str | None = None,
    ) -> None:
        super().__init__(opt, name)
        powers = {
            "initial_loss_scaling_factor": initial_loss_scaling_factor,
            "increase_factor": increase_factor,
            "max_loss_scaling_factor": max_loss_scaling_factor,
        }
        for argument, value in powers.items():
            if value <= 0 or not float(value).hex().startswith("0x1.0000000000000p"):
                raise ValueError(f"{argument}={value!r} is not a power of two. Pass for example 2.")
        if initial_loss_scaling_factor * increase_factor >= max_loss_scaling_factor:
            raise ValueError(
                f"max_loss_scaling_factor={max_loss_scaling_factor} allows no increase. Pass more."
            )
        whole_number("update_frequency", update_frequency, "a number of weight updates")
        if not 0 < ratio_threshold < 1:
            raise ValueError(
                f"ratio_threshold={ratio_threshold!r} is not between 0 and 1. Pass for example "
                "1e-5."
            )
        if not accumulate_statistics_over_update_period or lpf_alpha:
            raise NotImplementedError(
                "accumulate_statistics_over_update_period and lpf_alpha must keep their defaults."
            )
        self.loss_scale = convoy.AutomaticLossScale(
            initial=initial_loss_scaling_factor,
            period=update_frequency,
            step=increase_factor,
            limit=max_loss_scaling_factor,
            threshold=ratio_threshold,
            edge=histogram_bin_edge,
            captured_only=captured_grads_only,
        )
        self.model: keras.Model | None = None

    def attach(self, model: keras.Model) -> None:
        self.model = model
        super().attach(model)

    @property
    def decrease_factor(self) -> float:
        """Multiplier of the factor when it decreases."""
        return 1 / self.loss_scale.step

    @property
    def loss_scaling_factor(self) -> float:
        """The current factor of the loss."""
        return float(self._scaling.loss_scale)

    @property
    def previous_loss_scaling_factor(self) -> float:
        """The factor of the loss before the last change."""
        return float(self._scaling.previous)

    @property
    def update_counter(self) -> int:
        """Weight updates since the last change of the factor."""
        return int(self._scaling.updates)

    @property
    def histogram(self) -> np.ndarray:
        """Numbers of small and of large gradient elements since the last change."""
        scaling = self._scaling
        return np.array([scaling.counted - scaling.large, scaling.large], "float32")

    @property
    def normalized_histogram(self) -> np.ndarray:
        """The histogram divided by its sum."""
        return self.histogram / max(1.0, float(self.histogram.sum()))

    def reset(self) -> None:
        """Reset the factor and the statistics."""
        if self.model is not None:
            variables = PreparedModel.of(self.model).numerics.variables
            for variable, value in zip(variables, self.loss_scale.begin(), strict=False):
                variable.assign(value)

    @property
    def _scaling(self) -> LossScaleState:
        """The state of loss scaling; the initial one until a model is compiled."""
        if self.model is None:
            return self.loss_scale.begin()
        return PreparedModel.of(self.model).numerics.loss_scale_state or self.loss_scale.begin()

    def options(self) -> GradientOptions:
        return replace(super().options(), loss_scale=self.loss_scale)


class ALSGradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """Accumulates the gradients of several micro-batches of a scaled loss.

    Args:
        als_optimizer: an `ALSOptimizer`.
        num_mini_batches: micro-batches per weight update.
        kwargs: arguments of `GradientAccumulationOptimizer`.
    """

    def __init__(self, als_optimizer: ALSOptimizer, num_mini_batches: int, **kwargs: Any) -> None:
        if not isinstance(als_optimizer, ALSOptimizer):
            raise ValueError(f"als_optimizer={als_optimizer!r} is not an ALSOptimizer. Pass one.")
        super().__init__(als_optimizer, num_mini_batches, **kwargs)
