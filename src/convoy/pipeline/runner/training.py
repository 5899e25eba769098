"""Carries out a schedule: one program for each stage and kind of action, on its own devices.

Python only starts programs and transfers, in an order in which everything they need has been
started before; the devices run after it at their own pace.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import keras
from convoy import cpu, keras_bridge
from convoy.engine.data.chunks import Chunk, fetcher
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER, Observer
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.state import Variables
from convoy.engine.step.global_batch import GlobalBatch
from convoy.engine.step.replicate import Roles
from convoy.pipeline.options import Pipelining, stages_of_model
from convoy.pipeline.placement import PipelinePlacement
from convoy.pipeline.runner.layout import Layout
from convoy.pipeline.runner.shapes import Shapes, shapes_between
from convoy.pipeline.runner.stage_function import make_body
from convoy.pipeline.runner.stage_program import StageProgram
from convoy.pipeline.runner.training_call import Call
from convoy.pipeline.runner.update import DeviceUpdate, advance, check_optimizer
from convoy.pipeline.schedule import Schedule
from convoy.pipeline.simulation import simulate
from convoy.pipeline.timeline import Timeline, TimelineRecorder

Arrays = list[jax.Array]


class PipelinePrograms:
    """Trains a model in stages; what `engine.program.Programs` is for one that is whole."""

    def __init__(
        self,
        model: keras.Model,
        config: ExecutionConfig,
        options: Pipelining,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        self.model, self.config, self.options, self.observer = model, config, options, observer
        self.placement: PipelinePlacement = config.placement  # type: ignore[assignment]
        check_model(model, config)
        self.variables = Variables(model, "train")
        self.roles = Roles.of(model, self.variables)
        self.compilation = keras_bridge.compilation(model)
        self.assignment = stages_of_model(model)
        self.schedule = options.schedule_for(model, config.accumulation.count)
        self.layout = Layout(model, self.assignment or [], self.schedule.mapping, self.placement)
        self.numerics = PreparedModel.of(model).numerics
        parts = self.variables.parts
        self.trainable = self.layout.own(parts.trainable)
        self.statistics = self.layout.own(parts.non_trainable)
        optimizers = keras_bridge.divided_optimizer(
            model.optimizer, self.trainable, global_clipnorm=None
        )
        self.updates = [
            DeviceUpdate(model, trainable, optimizer, slots, column.mesh, config)
            for trainable, (optimizer, slots), column in zip(
                self.trainable, optimizers, self.layout.columns, strict=True
            )
        ]
        for place, update in enumerate(self.updates):
            update.reduce = observer.program(f"device {place} reduce", update.reduce)
            update.apply = observer.program(f"device {place} update", update.apply)
        self.advance = advance(self.numerics.settings)
        self.alone = False
        """Whether a recording is made with every action by itself."""
        self.timeline: Timeline | None = None
        """Of the last weight update, if it was recorded."""
        self._programs: dict[tuple, tuple[list[StageProgram], Shapes]] = {}
        self._results = jax.jit(lambda metrics: keras_bridge.metric_results(model, metrics))
        self._running: list[Any] = []

    def still_fits(self) -> bool:
        """Return whether the model has the variables and stages that the programs were made for."""
        return (
            self.compilation is keras_bridge.compilation(self.model)
            and self.assignment == stages_of_model(self.model)
            and self.variables.are_those_of(self.model)
        )

    def place(self) -> None:
        """Move the variables to where their stages run."""
        slots: dict[int, list[int]] = {}
        for place, update in enumerate(self.updates):
            for variable in update.variables:
                slots.setdefault(id(variable), []).append(place)
        self.layout.place(self.variables, slots)

    def limit_outputs(self, example: Any, budget: int, steps_per_execution: int) -> int:
        """Training has no outputs to keep."""
        del example, budget
        return steps_per_execution

    def run(self, chunk: Chunk) -> Any:
        """Run a chunk's weight updates; the variables then hold their outcome."""
        while len(self._running) > 1:
            jax.block_until_ready(self._running.pop(0))
        call = Call(self, chunk)
        call.run()
        metrics = call.finish()
        outcome = self._results(metrics) | self.numerics.logs(call.numerics)
        self._running.append(outcome)
        return outcome

    def recorder(self, schedule: Schedule) -> TimelineRecorder | None:
        if not self.options.record or self.placement.crosses_processes:
            return None
        return TimelineRecorder(
            schedule, simulate(schedule), len(self.layout.replicas), serialized=self.alone
        )

    def stage_programs(self, chunk: Chunk) -> tuple[list[StageProgram], Shapes]:
        """Return the programs of all stages for chunks of this kind, and what goes between them."""
        key = (chunk.layout, chunk.batch, chunk.sharded)
        if key not in self._programs:
            self._programs[key] = self._make_programs(chunk)
        return self._programs[key]

    def _make_programs(self, chunk: Chunk) -> tuple[list[StageProgram], Shapes]:
        config, layout = self.config, self.layout
        replicas = self.placement.replicas if chunk.sharded else 1
        count = config.accumulation.count if chunk.sharded else 1
        averages = config.accumulation.reduction == "mean"
        shares = (replicas if config.reduction == "mean" else 1) * (count if averages else 1)
        share = fetcher(chunk, replicas, in_one_program=False)
        traced = with_operations(shares, replicas * count, self.placement.platform)
        bodies = [
            make_body(self.model, layout.stages, number, replicas)
            for number in range(len(layout.stages))
        ]
        programs = [
            StageProgram(
                body,
                share,
                1 / count if averages else 1,
                recompute=self.options.recompute and number != layout.last,
                traced=traced,
                loss_scale=self.numerics.settings.loss_scale,
                records=self.options.record,
                program=partial(self._named, number),
            )
            for number, body in enumerate(bodies)
        ]
        shapes: Shapes = {}
        if self.placement.crosses_processes:
            shapes, _ = shapes_between(layout, bodies[:-1], chunk, replicas, traced)
        return programs, shapes

    def _named(self, number: int, kind: str, program: Any) -> Any:
        return self.observer.program(f"stage {number} {kind}", program)


def with_operations(
    shares: int, micro_batches: int, platform: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what traces a function with operations for a share of a batch.

    Args:
        shares: how many shares a mean is later taken over.
        micro_batches: how many shares there are.
        platform: of the devices.
    """

    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with keras_bridge.replaced_operations(GlobalBatch(shares, unseen=micro_batches)):
                if not cpu.fuses(platform):
                    return function(*args)
                with keras_bridge.replaced_operations(cpu.Fusion()):
                    return function(*args)

        return run

    return traced


def check_model(model: keras.Model, config: ExecutionConfig) -> None:
    """Refuse what a pipeline cannot do.

    Raises:
        ValueError: with what to do instead.
    """
    check_methods(model)
    for value, name, instead in (
        (config.batch_norm_group > 1, "batch_norm_group", "Leave it out."),
        (config.shard_optimizer_state, "shard_optimizer_state", "Stages divide it already."),
        (
            PreparedModel.of(model).gradient_map is not None,
            "MapGradientOptimizer",
            "Override its apply().",
        ),
        (
            config.activation_checkpointing is not None,
            "activation_checkpointing",
            "Use set_pipelining_options(recompute=True).",
        ),
    ):
        if value:
            raise ValueError(f"{name} is not there for models in stages. {instead}")
    check_optimizer(model.optimizer)


def check_methods(model: keras.Model) -> None:
    """Refuse a model whose own methods need all of it.

    Raises:
        ValueError: with what to do instead.
    """
    replaced = keras_bridge.overridden(model, ("compute_loss", "compute_metrics"))
    if replaced:
        raise ValueError(
            f"{type(model).__name__} overrides {' and '.join(replaced)}, which needs the whole "
            "model in one place. Pass a loss and metrics to compile(), or train it without stages."
        )
