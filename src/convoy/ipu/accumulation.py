"""How gradients of micro-batches become those of one weight update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import keras
from convoy.ipu.enums import GradientAccumulationReductionMethod


@dataclass(frozen=True)
class Accumulation:
    """How many micro-batches make a weight update, and how their gradients become one."""

    count: int
    method: GradientAccumulationReductionMethod
    dtype: str | None = None

    @property
    def reduction(self) -> Literal["sum", "mean"]:
        """The same for Convoy's engine; a running mean is a mean, added up in another order."""
        is_sum = self.method == GradientAccumulationReductionMethod.SUM
        return "sum" if is_sum else "mean"


def check_offload(options: Mapping[str, Any]) -> None:
    """Refuse to divide optimizer state over replicas that is not off-loaded."""
    offload = options.get("offload_weight_update_variables")
    if options.get("replicated_optimizer_state_sharding") and offload is False:
        raise ValueError(
            "replicated_optimizer_state_sharding=True needs offload_weight_update_variables, which "
            "is False. Leave that out."
        )


def read_dtype(name: str, options: Mapping[str, Any]) -> str | None:
    """Return the type in which gradients are added up, if one was given.

    Raises:
        NotImplementedError: if it is a function.
        ValueError: if it is not a type.
    """
    value = options.get(name)
    if value is None:
        return None
    if callable(value) and not isinstance(value, type):
        raise NotImplementedError(
            f"{name} is a function: all gradients are added up in one type. Pass that type."
        )
    try:
        return keras.backend.standardize_dtype(value)
    except ValueError:
        raise ValueError(
            f"{name}={value!r} is not a type. Pass 'float32', 'float16' or 'bfloat16'."
        ) from None
