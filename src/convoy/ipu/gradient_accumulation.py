"""Gradient accumulation: micro-batches per weight update, and how their gradients are reduced."""

from collections.abc import Mapping
from dataclasses import dataclass

import keras
from convoy.estimator.spec import Accumulation as EngineAccumulation
from convoy.ipu.enums import GradientAccumulationReductionMethod

__all__ = ["GradientAccumulationReductionMethod"]


@dataclass(frozen=True)
class Accumulation:
    """Gradient accumulation options.

    Attributes:
        gradient_accumulation: micro-batches per weight update and replica.
        method: reduction of their gradients.
        dtype: dtype of the accumulated gradients; by default their own.
    """

    gradient_accumulation: int = 1
    method: GradientAccumulationReductionMethod = GradientAccumulationReductionMethod.SUM
    dtype: str | None = None

    def native(self) -> EngineAccumulation:
        """Return the same options for Convoy's engine.

        A running mean is a mean, computed in another order.
        """
        is_sum = self.method == GradientAccumulationReductionMethod.SUM
        return EngineAccumulation(
            self.gradient_accumulation, "sum" if is_sum else "mean", self.dtype
        )


def check_offload(options: Mapping[str, object]) -> None:
    """Raise `ValueError` if optimizer state is to be sharded without being offloaded."""
    offload = options.get("offload_weight_update_variables")
    if options.get("replicated_optimizer_state_sharding") and offload is False:
        raise ValueError(
            "replicated_optimizer_state_sharding=True needs offload_weight_update_variables, which "
            "is False. Leave offload_weight_update_variables out."
        )


def read_dtype(name: str, value: object) -> str | None:
    """Return the dtype in which gradients are accumulated, if one was passed.

    Raises:
        NotImplementedError: if it is a function.
        ValueError: if it is not a dtype.
    """
    if value is None:
        return None
    if callable(value) and not isinstance(value, type):
        raise NotImplementedError(f"{name} is a function. Pass one dtype for all gradients.")
    try:
        return keras.backend.standardize_dtype(value)
    except ValueError:
        raise ValueError(
            f"{name}={value!r} is not a dtype. Pass 'float32', 'float16' or 'bfloat16'."
        ) from None
