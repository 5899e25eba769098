"""Stages given while a model is written down."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Self

from convoy import keras_bridge

_current: ContextVar[int | None] = ContextVar("convoy_pipeline_stage", default=None)
_blocks = 0


class PipelineStage:
    """Puts layers into a stage of a pipeline: those made in the block, and calls made in it.

    A call in the block is of this stage whatever the layer's own; a layer that was made in it takes
    its stage to calls outside of any block. In a subclassed model blocks are in `call`, or around
    layers in `__init__`.

    Args:
        stage: its number, from 0.

    Example:
    ```python
    with convoy.PipelineStage(0):
        x = keras.layers.Conv2D(32, 3)(inputs)
    with convoy.PipelineStage(1):
        x = keras.layers.Dense(10)(keras.layers.Flatten()(x))
    ```
    """

    def __init__(self, stage: int) -> None:
        if isinstance(stage, bool) or not isinstance(stage, int) or stage < 0:
            raise ValueError(f"PipelineStage({stage!r}): number stages from 0.")
        self.stage = stage
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        global _blocks
        inside = _current.get()
        if inside is not None:
            raise RuntimeError(
                f"PipelineStage({self.stage}) is inside of PipelineStage({inside}). End that one "
                "first."
            )
        _blocks += 1
        token = _current.set(self.stage)
        self._exit.callback(_current.reset, token)
        self._exit.enter_context(keras_bridge.marked_calls(_current.get))
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()


def blocks() -> int:
    """Return how many `PipelineStage` blocks this process has entered."""
    return _blocks
