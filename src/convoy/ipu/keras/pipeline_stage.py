"""Stages given while a model is written down."""

from __future__ import annotations

from typing import Self

import convoy


class PipelineStage(convoy.PipelineStage):
    """Puts layers into a stage of a pipeline: those made in the block, and calls made in it.

    Args:
        stage: its number, from 0.

    Raises:
        RuntimeError: outside of the scope of an `IPUStrategy`, or inside of another stage.
    """

    def __enter__(self) -> Self:
        from convoy.ipu.ipu_strategy import current  # it imports what models can do

        strategy = current()
        if strategy is None:
            raise RuntimeError(
                f"PipelineStage({self.stage}) is outside of an IPUStrategy. Make the model inside "
                "of `with strategy.scope():`."
            )
        if not strategy.takes_pipeline_stages:
            raise RuntimeError(
                f"PipelineStage({self.stage}) is inside of a {type(strategy).__name__}. Call the "
                "model's set_pipeline_stage_assignment() instead."
            )
        return super().__enter__()
