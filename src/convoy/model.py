"""What a Keras model gains when a strategy takes it in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import keras
from convoy import distributed, keras_bridge
from convoy.engine import checks, random_state
from convoy.engine.data.chunks import Budget, Feed
from convoy.engine.data.input import check_batch, open_input
from convoy.engine.execution_config import Accumulation, ExecutionConfig, Reduction
from convoy.engine.numerics import numerics
from convoy.engine.observer import Observer
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.run import Runner
from convoy.engine.state import Mode
from convoy.engine.steps_per_execution import Pace
from convoy.pipeline import Schedule, Timeline
from convoy.pipeline.config import PipelineConfig, pipeline_placement
from convoy.pipeline.device_layout import PipelinePlacement
from convoy.pipeline.pipeline_stage import trace_stages
from convoy.pipeline.stages import (
    calls_of,
    reset_stage_assignment,
    set_stage_assignment,
    stage_assignment,
)


class EngineMethods:
    """The methods of `keras.Model` that run on the engine, with Keras's own signatures.

    They are set on the instance: its class stays what it was, so it saves, clones and prints as
    under stock Keras.
    """

    replaced = (
        "compile",
        "fit",
        "evaluate",
        "predict",
        "train_on_batch",
        "test_on_batch",
        "predict_on_batch",
        "set_asynchronous_callbacks",
        "set_gradient_accumulation",
        "set_pipelining_options",
        "get_pipeline_timeline",
        "set_pipeline_stage_assignment",
        "get_pipeline_stage_assignment",
        "reset_pipeline_stage_assignment",
        "print_pipeline_stage_assignment_summary",
        "export_for_serving",
    )

    def __init__(
        self,
        model: keras.Model,
        config: ExecutionConfig,
        data_budget: int,
        observer: Callable[[], Observer],
    ) -> None:
        self.model = model
        self.runner = Runner(model, config)
        self.observer = observer
        self.data_budget = data_budget
        self.pipelining = PipelineConfig()
        self.traced: object | None = None
        """The graph of a subclassed model that programs were made for."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Configure the model for training, as `keras.Model.compile` does.

        `steps_per_execution` is the number of steps in one device call; `"auto"` chooses one that
        keeps callbacks at least once a second.
        """
        asked = checks.check_steps_per_execution(kwargs.get("steps_per_execution", 1))
        self.runner.automatic = asked == "auto"
        if self.runner.automatic:
            # Not a word that stock Keras knows, so it does not go into a saved model.
            kwargs["steps_per_execution"] = 1
        settings = PreparedModel.of(self.model).numerics.settings
        if settings.loss_scale is not None:
            # The strategy's own takes the place of the one that Keras adds for mixed_float16.
            kwargs["auto_scale_loss"] = False
        type(self.model).compile(self.model, *args, **kwargs)
        PreparedModel.of(self.model).numerics = numerics.Numerics(settings)

    def set_gradient_accumulation(
        self, count: int, *, reduction: Reduction | None = None, dtype: str | None = None
    ) -> None:
        """Choose for this model how many micro-batches make a weight update.

        Args:
            count: micro-batches per weight update and replica.
            reduction: `"mean"` or `"sum"` over these micro-batches; by default the strategy's.
            dtype: the type in which gradients are added up; by default their own.
        """
        config = self.runner.config
        accumulation = Accumulation(count, reduction or config.reduction, dtype)
        self.runner.use(replace(config, accumulation=accumulation))

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Choose whether callbacks are told of every step while the devices go on.

        They are then called from another thread, as results come in, for every step and every
        replica; of accumulated micro-batches when their weight update is done. Each weight update
        is a device call of its own. Whether a callback has asked to stop is still looked at
        between executions of `steps_per_execution` steps.

        Args:
            asynchronous: whether; by default callbacks are called once per execution.
        """
        self.runner.asynchronous = asynchronous

    def set_pipelining_options(
        self,
        *,
        gradient_accumulation_steps_per_replica: int | None = None,
        schedule: str | Schedule = "1f1b",
        device_mapping: Sequence[int] | None = None,
        recompute: bool = False,
        record: bool = False,
    ) -> None:
        """Choose how this model is run if it has several stages.

        Args:
            gradient_accumulation_steps_per_replica: micro-batches per weight update and replica; by
                default what the strategy says.
            schedule: `"sequential"`, `"gpipe"`, `"1f1b"`, `"zero-bubble"`, or a
                `Schedule` of your own.
            device_mapping: the device of each stage; by default one for each.
            recompute: whether stages keep only their input for the backward pass.
            record: whether the last weight update of every device call is recorded, for
                `get_pipeline_timeline`.
        """
        if gradient_accumulation_steps_per_replica is not None:
            self.set_gradient_accumulation(gradient_accumulation_steps_per_replica)
        mapping = None if device_mapping is None else tuple(device_mapping)
        self.pipelining = PipelineConfig(schedule, mapping, recompute, record)

    def get_pipeline_timeline(self) -> Timeline | None:
        """Return what the devices did, and when, in the last weight update that was recorded."""
        programs = self.runner.programs.made("train")
        return getattr(programs, "timeline", None)

    def set_pipeline_stage_assignment(self, stages: list[int]) -> None:
        """Give every layer its stage, in the order in which layers run."""
        set_stage_assignment(self.model, stages)

    def get_pipeline_stage_assignment(self) -> list[int] | None:
        """Return the stage of every layer, or `None` if the model is in one piece."""
        return stage_assignment(self.model)

    def reset_pipeline_stage_assignment(self) -> None:
        """Have the model in one piece again."""
        reset_stage_assignment(self.model)

    def print_pipeline_stage_assignment_summary(self) -> None:
        """Print the stage of every layer."""
        stages = stage_assignment(self.model)
        calls = calls_of(self.model)
        for call, stage in zip(calls, stages or [0] * len(calls), strict=True):
            print(f"stage {stage}  {type(call.operation).__name__:24} {call.name}")

    def export_for_serving(self, folder: str | Path, **settings: Any) -> Path:
        """Write the model as a new version that `convoy serve` can serve.

        Args:
            folder: the model's folder, with a folder for each version.
            **settings: those of `convoy.export`.

        Returns:
            The version's folder.
        """
        # What serves models is above what trains them.
        from convoy.serving import export

        return export(self.model, folder, **settings)

    def _plan_stages(self, x: Any) -> None:
        """Ask who watches; make a plan for stages if the model has them, or drop it."""
        trace_stages(self.model, x)
        runner, pipelining = self.runner, self.pipelining
        runner.watch(self.observer())
        if self.traced is not keras_bridge.traced_graph(self.model):
            self.traced = keras_bridge.traced_graph(self.model)
            runner.use(runner.config)
        if runner.observer.times_actions:
            pipelining = replace(pipelining, record=True)
        if stage_assignment(self.model) is None:
            if runner.current is not runner.config:
                runner.use(runner.config)
            return
        placement = pipeline_placement(self.model, pipelining, runner.config)
        planned = runner.current.placement
        same = isinstance(planned, PipelinePlacement) and planned.rows == placement.rows
        if not same or runner.current.pipeline != pipelining:
            staged = replace(runner.config, placement=placement, pipeline=pipelining)
            runner.use(runner.config, staged)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool | str = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | list[int] = 1,
    ) -> keras.callbacks.History:
        """Train the model, as `keras.Model.fit` does.

        `batch_size` is the micro-batch of one replica, unless the strategy says otherwise.
        """
        checks.check_model(self.model, "fit")
        self._plan_stages(x)
        random_state.agree()
        epochs = keras_bridge.limit_epochs(epochs)
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = keras_bridge.train_validation_split(
                (x, y, sample_weight), validation_split=validation_split
            )
        budget, pace = Budget(self.data_budget), self.runner.pace("train")
        feed = self._open(
            "train",
            (x, y, sample_weight),
            budget,
            pace,
            batch_size=batch_size,
            steps=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
        )
        validation = None
        if validation_data is not None:
            validation = self._open(
                "evaluate",
                keras_bridge.unpack(validation_data),
                budget,
                pace,
                batch_size=validation_batch_size or batch_size,
                steps=validation_steps,
            )
        self._check_same_run(epochs=epochs, steps_per_epoch=feed.steps, batch_size=batch_size)
        callback_list = self._callbacks(callbacks, verbose, feed, epochs=epochs, add_history=True)
        with self._observed("fit"):
            self.runner.train(
                feed, validation, pace, callback_list, range(initial_epoch, epochs), validation_freq
            )
        self.runner.release()
        return self.model.history

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Compute loss and metrics, as `keras.Model.evaluate` does; no sample is left out."""
        checks.check_model(self.model, "evaluate")
        self._plan_stages(x)
        feed, pace, _ = self._open_once("evaluate", (x, y, sample_weight), batch_size, steps)
        callback_list = self._callbacks(callbacks, verbose, feed)
        self._check_same_run(steps=feed.steps, batch_size=batch_size)
        with self._observed("evaluate"):
            logs = self.runner.evaluate(feed, pace, callback_list)
        self.runner.release()
        return logs if return_dict else keras_bridge.flat_metrics(self.model, logs)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Return the model's outputs as host arrays, as `keras.Model.predict` does."""
        checks.check_model(self.model, "predict")
        self._plan_stages(x)
        feed, pace, budget = self._open_once("predict", (x, None, None), batch_size, steps)
        self._check_same_run(steps=feed.steps, batch_size=batch_size)
        callback_list = self._callbacks(callbacks, verbose, feed)
        with self._observed("predict"):
            outputs = self.runner.predict(feed, pace, budget, callback_list)
        self.runner.release()
        return outputs

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: dict[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Run one weight update on one batch of all replicas and micro-batches."""
        checks.check_model(self.model, "train_on_batch")
        self._plan_stages(x)
        if class_weight is not None:
            if sample_weight is not None:
                raise ValueError(
                    "Both `sample_weight` and `class_weight` were passed. Pass one of them."
                )
            sample_weight = keras_bridge.class_weight_to_sample_weights(y, class_weight)
        return self._on_batch("train", (x, y, sample_weight), return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Compute loss and metrics of one batch."""
        checks.check_model(self.model, "test_on_batch")
        self._plan_stages(x)
        return self._on_batch("evaluate", (x, y, sample_weight), return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """Return the outputs for one batch."""
        checks.check_model(self.model, "predict_on_batch")
        self._plan_stages(x)
        keras_bridge.build_for_prediction(self.model, x)
        with self._observed("predict_on_batch"):
            return self.runner.run_once("predict", (x,))

    def _on_batch(self, mode: Mode, batch: tuple[Any, Any, Any], return_dict: bool) -> Any:
        explain = partial(checks.explain_targets, self.model, batch[1])
        keras_bridge.build_for_batch(self.model, batch, explain)
        check_batch(self.model, batch)
        self.model.reset_metrics()
        with self._observed(f"{'train' if mode == 'train' else 'test'}_on_batch"):
            logs = keras_bridge.python_logs(self.runner.run_once(mode, batch))
        if return_dict:
            return logs
        values = {name: value for name, value in logs.items() if name not in numerics.REPORTED}
        return keras_bridge.flat_metrics(self.model, values)

    def _observed(self, name: str) -> AbstractContextManager[None]:
        return self.runner.observer.run(name, self.model, self.runner.current)

    def _open_once(
        self, mode: Mode, data: tuple[Any, Any, Any], batch_size: int | None, steps: int | None
    ) -> tuple[Feed, Pace, Budget]:
        budget, pace = Budget(self.data_budget), self.runner.pace(mode)
        feed = self._open(mode, data, budget, pace, batch_size=batch_size, steps=steps)
        return feed, pace, budget

    def _open(
        self, mode: Mode, data: tuple[Any, Any, Any], budget: Budget, pace: Pace, **settings: Any
    ) -> Feed:
        config = self.runner.current
        feed = open_input(self.model, mode, data, config, budget, pace.block_steps, **settings)
        if config.pipeline is None and stage_assignment(self.model) is not None:
            raise ValueError(
                f"{self.model.name!r} is in stages, as was found when its data was opened. Call it "
                "on some inputs before, for example model(x[:1])."
            )
        return feed

    def _check_same_run(self, **asked: Any) -> None:
        """Refuse to run if other processes were asked for something else."""
        if distributed.count() > 1:
            config = self.runner.current
            shapes = [list(variable.shape) for variable in self.model.variables]
            said = {"model": shapes, "gradient_accumulation": config.accumulation.count}
            distributed.check_same(
                "run", asked | said | {"steps_per_execution": self._pace_asked()}
            )

    def _pace_asked(self) -> int | str:
        return "auto" if self.runner.automatic else int(self.model.steps_per_execution)

    def _callbacks(
        self, callbacks: Any, verbose: str | int, feed: Feed, **settings: Any
    ) -> keras.callbacks.CallbackList:
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        reader = keras_bridge.reader_of_weights(callbacks)
        if reader is not None and self.runner.current.placement.crosses_processes:
            raise ValueError(
                f"{type(reader).__name__} reads all weights while {self.model.name!r} trains, but "
                "its stages are in several processes, each with its own weights. Use "
                "convoy.Checkpoints, or put the stages of a replica into one process."
            )
        if not distributed.is_first():
            verbose, callbacks = 0, keras_bridge.without_files(callbacks)
        return keras_bridge.Callbacks(
            callbacks,
            add_progbar=verbose != 0,
            verbose=verbose,
            steps=feed.steps,
            model=self.model,
            **({"epochs": 1} | settings),
        )


def attach(
    model: keras.Model,
    config: ExecutionConfig,
    data_budget: int,
    devices: Sequence[jax.Device],
    observer: Callable[[], Observer],
) -> None:
    """Have a model run on the engine. Its class, weights and compilation stay as they are.

    Args:
        model: the model.
        config: how its work is divided.
        data_budget: bytes of each device's memory that data may take.
        devices: those of the strategy.
        observer: returns who is told of a run, asked when it begins.
    """
    PreparedModel.of(model).devices = tuple(devices)
    methods = EngineMethods(model, config, data_budget, observer)
    # Not through `setattr`: Keras would take it for a change of the model's state.
    for name in EngineMethods.replaced:
        vars(model)[name] = getattr(methods, name)
