"""A model with its configuration, its compiled programs and its strategy."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Protocol

import jax
import keras
from convoy import distributed, keras_bridge
from convoy.engine import checks, out_of_memory
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import Observer
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.run import HostLoop
from convoy.pipeline import pipeline_stage
from convoy.pipeline.config import PipelineConfig, pipeline_placement
from convoy.pipeline.device_layout import PipelinePlacement
from convoy.pipeline.split import split_deferred
from convoy.pipeline.stages import stage_assignment
from convoy.types import Data

TRAINING = ("fit", "train_on_batch")


class ModelStrategy(Protocol):
    """The part of a strategy that its models use."""

    observer: Observer

    def adopt(self, new: keras.Model) -> None:
        """Prepare a model for this strategy."""
        ...


class EngineModel:
    """A Keras model that runs on the engine.

    Attributes:
        model: the Keras model.
        prepared: its state.
        host_loop: host loop of the model, with its compiled programs.
        strategy: its strategy, whose observer is used from the next run on.
        pipelining: its options of pipeline parallelism.
        processes: number of processes that run it.
        was_built: whether all of its layers were built when the current run began.
    """

    def __init__(
        self, model: keras.Model, config: ExecutionConfig, strategy: ModelStrategy
    ) -> None:
        self.model = model
        self.prepared = PreparedModel.of(model)
        self.host_loop = HostLoop(model, config)
        self.strategy = strategy
        self.pipelining = PipelineConfig()
        self.processes = distributed.count()
        self.was_built = True
        # The graph of a subclassed model that programs were compiled for.
        self._traced_graph = self.prepared.traced_graph

    def dividing_options(self, method: str, has_stages: bool) -> list[str]:
        """Return the options of the strategy that run the parts of a step separately.

        Args:
            method: the method of the model that was called.
            has_stages: whether the model has pipeline stages.
        """
        config, settings = self.host_loop.config, self.prepared.numerics.settings
        trains = method in TRAINING
        found = {
            checks.PIPELINE: has_stages,
            f"gradient_accumulation={config.gradient_accumulation}": trains
            and config.gradient_accumulation > 1,
            "activation_checkpointing": trains and config.activation_checkpointing is not None,
            # With one replica and one micro-batch there is nothing to sum.
            f"reduction={config.reduction!r}": trains
            and config.reduction == "sum"
            and config.replicas > 1,
            "loss_scale": trains and settings.loss_scaling is not None,
            "stochastic_rounding": trains and settings.rounds,
        }
        return [words for words, is_requested in found.items() if is_requested]

    def check_custom_step(self, method: str, has_stages: bool) -> None:
        """Raise an error if a custom step of the model cannot be divided into parts."""
        if options := self.dividing_options(method, has_stages):
            checks.check_custom_step(self.model, method, options)

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
        loop, pipelining = self.host_loop, self.pipelining
        # If no `PipelineStage` block was ever entered, no layer has a stage, and the graph is not
        # needed. The `call` of a model that is not built yet may enter one.
        may_have_stages = pipeline_stage.entered_blocks or not self.was_built
        stages = None
        if may_have_stages or self.prepared.stages is not None:
            predicts = method.startswith("predict")
            stages = stage_assignment(self.model, x, predicts=predicts)
        self.check_custom_step(method, stages is not None)
        observer = self.strategy.observer
        if observer is not loop.observer:
            loop.observe(observer)
        if self._traced_graph is not self.prepared.traced_graph:
            self._traced_graph = self.prepared.traced_graph
            loop.use(loop.config)
        if stages is None:
            if loop.current is not loop.config:
                loop.use(loop.config)
            return
        if observer.times_actions:
            pipelining = replace(pipelining, record=True)
        placement = pipeline_placement(self.model, pipelining, loop.config)
        current = loop.current.placement
        same = isinstance(current, PipelinePlacement) and current.rows == placement.rows
        if not same or loop.current.pipeline != pipelining:
            staged = replace(loop.config, placement=placement, pipeline=pipelining)
            loop.use(loop.config, staged)

    @contextmanager
    def run(self, method: str, **arguments: int | None) -> Iterator[None]:
        """Return a context for a run, in which it is observed.

        Args:
            method: the method of the model that was called.
            **arguments: its arguments that must be the same in all processes; none for a method
                that runs a single batch.
        """
        config = self.host_loop.current
        is_shared = self.processes > 1 and bool(arguments)
        try:
            with (
                self._shared_run(arguments) if is_shared else nullcontext(),
                self.host_loop.observer.run(method, self.model, config),
            ):
                yield
        except jax.errors.JaxRuntimeError as error:
            explained = out_of_memory.explain(error, method, self.model.name, config)
            if explained is None:
                raise
            raise explained from None

    @contextmanager
    def _shared_run(self, arguments: dict[str, int | None]) -> Iterator[None]:
        """Check that all processes were called with the same arguments; share variables."""
        run = arguments | {
            "model": [list(variable.shape) for variable in self.model.variables],
            "gradient_accumulation": self.host_loop.current.gradient_accumulation,
            "steps_per_execution": "auto"
            if self.host_loop.automatic_steps
            else int(self.model.steps_per_execution),
        }
        distributed.check_same("run", run)
        yield
        self.host_loop.runners.release()
