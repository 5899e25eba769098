"""A model with its configuration, its compiled programs and its strategy."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

import keras
from convoy import distributed, keras_bridge
from convoy.engine import checks, stock_path
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import Observer
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.run import Runner
from convoy.pipeline.config import PipelineConfig, pipeline_placement
from convoy.pipeline.device_layout import PipelinePlacement
from convoy.pipeline.split import split_deferred
from convoy.pipeline.stages import stage_assignment
from convoy.types import Data


class ModelStrategy(Protocol):
    """A strategy, as far as its models refer to it."""

    observer: Observer

    def adopt(self, new: keras.Model) -> None:
        """Prepare a model for this strategy."""
        ...


class EngineModel:
    """A Keras model that runs on the engine.

    Attributes:
        model: the Keras model.
        prepared: its state.
        runner: runs it, with the programs that were compiled for it.
        strategy: its strategy, whose observer is used from the next run on.
        pipelining: its options of pipeline parallelism.
        was_built: whether all of its layers were built when the current run began.
    """

    def __init__(
        self, model: keras.Model, config: ExecutionConfig, strategy: ModelStrategy
    ) -> None:
        self.model = model
        self.prepared = PreparedModel.of(model)
        self.runner = Runner(model, config)
        self.strategy = strategy
        self.pipelining = PipelineConfig()
        self.was_built = True
        # The graph of a subclassed model that programs were compiled for.
        self._traced_graph = self.prepared.traced_graph

    def divisions(self, method: str, has_stages: bool) -> list[str]:
        """Return what the strategy asks for that needs the parts of a step one by one."""
        settings = self.prepared.numerics.settings
        return stock_path.divisions(self.runner.config, settings, method, has_stages)

    def begin(self, method: str, x: Data) -> Data:
        """Check the model, and choose its configuration: the pipeline's, if it has stages.

        Returns:
            The input to read instead of `x`, from which a batch may have been taken.
        """
        self.was_built = keras_bridge.layers_are_built(self.model)
        checks.check_model(self.model, method, self.prepared.numerics.settings)
        if self.prepared.deferred_split is not None:
            inputs, x = keras_bridge.first_inputs(x)
            split_deferred(self.model, inputs)
        self._configure(method, x)
        return x

    def _configure(self, method: str, x: Data) -> None:
        runner, pipelining = self.runner, self.pipelining
        stages = stage_assignment(self.model, x)
        divisions = self.divisions(method, stages is not None)
        checks.check_custom_step(self.model, method, divisions)
        observer = self.strategy.observer
        if observer is not runner.observer:
            runner.observe(observer)
        if self._traced_graph is not self.prepared.traced_graph:
            self._traced_graph = self.prepared.traced_graph
            runner.use(runner.config)
        if stages is None:
            if runner.current is not runner.config:
                runner.use(runner.config)
            return
        if observer.times_actions:
            pipelining = replace(pipelining, record=True)
        placement = pipeline_placement(self.model, pipelining, runner.config)
        current = runner.current.placement
        same = isinstance(current, PipelinePlacement) and current.rows == placement.rows
        if not same or runner.current.pipeline != pipelining:
            staged = replace(runner.config, placement=placement, pipeline=pipelining)
            runner.use(runner.config, staged)

    def observed(self, name: str) -> AbstractContextManager[None]:
        """Return a context in which a run is observed."""
        return self.runner.observer.run(name, self.model, self.runner.current)

    def check_same_run(self, **arguments: int | None) -> None:
        """Raise an error if other processes were called with other arguments."""
        if distributed.count() > 1:
            run = arguments | {
                "model": [list(variable.shape) for variable in self.model.variables],
                "gradient_accumulation": self.runner.current.gradient_accumulation,
                "steps_per_execution": "auto"
                if self.runner.automatic_steps
                else int(self.model.steps_per_execution),
            }
            distributed.check_same("run", run)
