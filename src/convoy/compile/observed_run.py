"""One run whose programs are compiled."""

from __future__ import annotations

import keras
from convoy.engine.chunk_runner import ModelRunner
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import Mode


class ObservedRun:
    """One call of `fit`, `evaluate` or the like.

    Attributes:
        name: the name of the method.
        model: the model.
        config: the configuration of the run.
        batch: samples of a micro-batch, over all replicas; known after the first device call.
        data_bytes: bytes of the data of that call on each device that reads it.
        runners: runners of the model that were used, by mode.
    """

    def __init__(self, name: str, model: keras.Model, config: ExecutionConfig) -> None:
        self.name, self.model, self.config = name, model, config
        self.batch = self.data_bytes = 0
        self.runners: dict[Mode, ModelRunner] = {}
