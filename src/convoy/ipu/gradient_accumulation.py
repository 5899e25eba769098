"""How gradients of micro-batches are put together."""

from convoy.ipu.enums import GradientAccumulationReductionMethod

__all__ = ["GradientAccumulationReductionMethod"]
