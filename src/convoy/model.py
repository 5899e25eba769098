"""The methods that replace those of a Keras model inside of a strategy's scope."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import jax
import keras
from convoy import distributed, keras_bridge
from convoy.engine import checks, random_state, stock_path
from convoy.engine.data.chunks import Feed
from convoy.engine.data.input import Budget, InputData, check_batch, open_input
from convoy.engine.execution_config import ExecutionConfig, Reduction
from convoy.engine.numerics.numerics import LOGS, Numerics
from convoy.engine.observer import Observer
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.run import Runner, Validate
from convoy.engine.state import Mode
from convoy.engine.steps_per_execution import StepsPerExecution
from convoy.engine.turns import Turns
from convoy.pipeline import Schedule, Timeline
from convoy.pipeline.config import PipelineConfig, pipeline_placement
from convoy.pipeline.device_layout import PipelinePlacement
from convoy.pipeline.stages import (
    calls_of,
    reset_stage_assignment,
    set_stage_assignment,
    stage_assignment,
)
from convoy.types import Batch, Data, Logs, PyTree

# Once, for all models: those that no strategy has prepared run as before.
keras_bridge.route_methods()
keras_bridge.make_crops_compilable()

Callbacks: TypeAlias = "list[keras.callbacks.Callback] | keras.callbacks.CallbackList | None"


class Observed(Protocol):
    """A strategy, as far as its models refer to it."""

    observer: Observer

    def adopt(self, new: keras.Model) -> None:
        """Prepare a model for this strategy."""
        ...


class ModelOptions(NamedTuple):
    """The options of one model, beside those of its strategy."""

    gradient_accumulation: int
    reduction: Reduction
    dtype: str | None
    asynchronous_callbacks: bool
    pipelining: PipelineConfig
    stages: list[int] | None


class EngineMethods:
    """The methods of `keras.Model` that run on the engine, with Keras's own signatures.

    `keras.Model` calls them in place of its own, so an override in the model's class runs first.
    The class does not change: the model is saved, cloned and printed as under stock Keras.
    """

    added = (
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

    def __init__(self, model: keras.Model, config: ExecutionConfig, observed: Observed) -> None:
        self.model = model
        self.prepared = PreparedModel.of(model)
        self.runner = Runner(model, config)
        self.observed = observed
        self.pipelining = PipelineConfig()
        self.traced_graph = self.prepared.traced_graph
        """The graph of a subclassed model that programs were compiled for."""
        self.turns = Turns(model)
        self._was_built = True
        self._noticed: set[str] = set()

    def attach(self) -> None:
        """Make the model run on the engine."""
        self.prepared.use_options = self.use_options
        methods = {name: self._on_engine_or_stock(name) for name in stock_path.FUNCTIONS}
        methods["compile"], methods["__reduce__"] = self.compile, self._reduce
        methods[keras_bridge.COPY] = lambda clone: copy_to(self.observed, self.options(), clone)
        self.prepared.methods = methods
        # Not through `setattr`: Keras would track it as a part of the model.
        vars(self.model).update({name: getattr(self, name) for name in self.added})

    def _on_engine_or_stock(self, name: str) -> Callable[..., PyTree]:
        """Return a method that runs on the engine, or by stock Keras if the engine has no path."""
        on_engine: Callable[..., PyTree] = getattr(self, name)

        @wraps(on_engine)
        def method(*args: PyTree, **kwargs: PyTree) -> PyTree:
            reason = stock_path.reason(self.model, name, args[0] if args else kwargs.get("x"))
            if reason is None:
                with self.turns.take(name, self.runner.asynchronous_callbacks):
                    return on_engine(*args, **kwargs)
            replicas = self.runner.config.replicas
            requests = [f"{replicas} replicas"] if replicas > 1 else []
            requests += self._divisions(name, stage_assignment(self.model) is not None)
            if requests:
                raise ValueError(
                    f"{reason.why} Only stock Keras can run that, without {', '.join(requests)}. "
                    f"{reason.remedy}"
                )
            if reason.why not in self._noticed:
                self._noticed.add(reason.why)
                warnings.warn(
                    f"{reason.why} Stock Keras runs {name}() of {self.model.name!r}. "
                    f"{reason.remedy}",
                    stacklevel=3,
                )
            return keras_bridge.stock_method(self.model, name)(*args, **kwargs)

        return method

    def _divisions(self, method: str, has_stages: bool) -> list[str]:
        settings = self.prepared.numerics.settings
        return stock_path.divisions(self.runner.config, settings, method, has_stages)

    # Options ------------------------------------------------------------------------------------

    def compile(self, *args: object, **kwargs: object) -> None:
        """Configure the model for training, as `keras.Model.compile` does.

        `steps_per_execution` is the number of steps in one device call; `"auto"` chooses one that
        keeps callbacks at least once a second.
        """
        requested = checks.check_steps_per_execution(kwargs.get("steps_per_execution", 1))
        self.runner.automatic_steps = requested == "auto"
        if requested == "auto":
            # Stock Keras does not know this value, so it does not go into a saved model.
            kwargs["steps_per_execution"] = 1
        settings = self.prepared.numerics.settings
        if settings.loss_scale is not None:
            # The strategy's loss scale replaces the one that Keras adds for mixed_float16.
            kwargs["auto_scale_loss"] = False
        keras_bridge.stock_method(self.model, "compile")(*args, **kwargs)
        self.prepared.numerics = Numerics(settings)

    def set_gradient_accumulation(
        self,
        gradient_accumulation: int,
        *,
        reduction: Reduction | None = None,
        dtype: str | None = None,
    ) -> None:
        """Set the gradient accumulation of this model.

        Args:
            gradient_accumulation: micro-batches per weight update and replica.
            reduction: `"mean"` or `"sum"` over these micro-batches; by default the strategy's.
            dtype: type in which gradients are added up; by default their own.
        """
        config = self.runner.config
        self.runner.use(
            replace(
                config,
                gradient_accumulation=gradient_accumulation,
                accumulation_reduction=reduction or config.reduction,
                accumulation_dtype=dtype,
            )
        )

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Choose whether callbacks are called for every step while the devices continue.

        They are then called from another thread, as results arrive, for every step and every
        replica; for accumulated micro-batches after their weight update. Each weight update is a
        device call of its own. `stop_training` still takes effect between executions of
        `steps_per_execution` steps.

        Args:
            asynchronous: `True` for every step; `False`, the default, for once per execution.
        """
        self.runner.asynchronous_callbacks = asynchronous

    def set_pipelining_options(
        self,
        *,
        gradient_accumulation_steps_per_replica: int | None = None,
        schedule: str | Schedule = "1f1b",
        device_mapping: Sequence[int] | None = None,
        activation_checkpointing: bool = False,
        record: bool = False,
    ) -> None:
        """Set the options of pipeline parallelism, which apply if this model has several stages.

        Args:
            gradient_accumulation_steps_per_replica: micro-batches per weight update and replica; by
                default the strategy's `gradient_accumulation`.
            schedule: `"1f1b"`, `"gpipe"`, `"zero-bubble"`, `"sequential"`, or a `Schedule` of your
                own.
            device_mapping: the device of each stage; by default one for each.
            activation_checkpointing: whether stages keep only their input for the backward pass.
            record: whether the last weight update of every device call is timed, for
                `get_pipeline_timeline`.
        """
        if gradient_accumulation_steps_per_replica is not None:
            self.set_gradient_accumulation(gradient_accumulation_steps_per_replica)
        mapping = None if device_mapping is None else tuple(device_mapping)
        self.pipelining = PipelineConfig(schedule, mapping, activation_checkpointing, record)

    # Copies -------------------------------------------------------------------------------------

    def options(self) -> ModelOptions:
        """Return the options of this model."""
        config = self.runner.config
        return ModelOptions(
            config.gradient_accumulation,
            config.accumulation_reduction,
            config.accumulation_dtype,
            self.runner.asynchronous_callbacks,
            self.pipelining,
            self.prepared.stages,
        )

    def use_options(self, options: ModelOptions) -> None:
        """Use the options of a model that this one is a copy of."""
        self.set_gradient_accumulation(
            options.gradient_accumulation, reduction=options.reduction, dtype=options.dtype
        )
        self.runner.asynchronous_callbacks = options.asynchronous_callbacks
        self.pipelining, self.prepared.stages = options.pipelining, options.stages

    def _reduce(self) -> tuple[Callable[..., keras.Model], tuple]:
        stock = keras_bridge.stock_method(self.model, "__reduce__")()
        return restore_copy, (*stock, self.observed, self.options())

    # Pipeline stages ----------------------------------------------------------------------------

    def get_pipeline_timeline(self) -> Timeline | None:
        """Return the timeline of the last weight update that was timed."""
        runner = self.runner.programs.find("train")
        return getattr(runner, "timeline", None)

    def set_pipeline_stage_assignment(self, stages: list[int]) -> None:
        """Set the stage of every layer, in the order in which layers run."""
        set_stage_assignment(self.model, stages)

    def get_pipeline_stage_assignment(self) -> list[int] | None:
        """Return the stage of every layer, or `None` if the model has one stage."""
        return stage_assignment(self.model)

    def reset_pipeline_stage_assignment(self) -> None:
        """Put all layers into one stage."""
        reset_stage_assignment(self.model)

    def print_pipeline_stage_assignment_summary(self) -> None:
        """Print the stage of every layer."""
        stages = stage_assignment(self.model)
        calls = calls_of(self.model)
        for call, stage in zip(calls, stages or [0] * len(calls), strict=True):
            print(f"stage {stage}  {type(call.operation).__name__:24} {call.name}")

    def _begin(self, method: str, x: Data) -> None:
        """Check the model, and choose its configuration: the pipeline's, if it has stages."""
        self._was_built = keras_bridge.layers_are_built(self.model)
        checks.check_model(self.model, method, self.prepared.numerics.settings)
        runner, pipelining = self.runner, self.pipelining
        stages = stage_assignment(self.model, x)
        divisions = self._divisions(method, stages is not None)
        checks.check_custom_step(self.model, method, divisions)
        observer = self.observed.observer
        if observer is not runner.observer:
            runner.observe(observer)
        if self.traced_graph is not self.prepared.traced_graph:
            self.traced_graph = self.prepared.traced_graph
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

    # Serving ------------------------------------------------------------------------------------

    def export_for_serving(self, folder: str | Path, **settings: PyTree) -> Path:
        """Write the model as a new version that `convoy serve` can serve.

        Args:
            folder: the model's folder, with a folder for each version.
            **settings: those of `convoy.export`.

        Returns:
            The version's folder.
        """
        # `serving` is above this module in the layers.
        from convoy.serving import export

        return export(self.model, folder, **settings)

    # Training, evaluation, prediction -----------------------------------------------------------

    def fit(
        self,
        x: Data = None,
        y: Data = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: Callbacks = None,
        validation_split: float = 0.0,
        validation_data: Data = None,
        shuffle: bool | str = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Data = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | list[int] = 1,
    ) -> keras.callbacks.History:
        """Train the model, as `keras.Model.fit` does.

        `batch_size` is the micro-batch of one replica, unless the strategy says otherwise.
        """
        self._begin("fit", x)
        if distributed.count() > 1:
            random_state.use_state_of_first_process()
        epochs = keras_bridge.limit_epochs(epochs)
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = keras_bridge.train_validation_split(
                (x, y, sample_weight), validation_split=validation_split
            )
        budget = Budget(self.prepared.data_budget)
        steps_per_execution = self.runner.steps_per_execution("train")
        feed = self._open(
            "train",
            (x, y, sample_weight),
            budget,
            steps_per_execution,
            batch_size=batch_size,
            steps=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
        )
        validation: Feed | Validate | None = None
        if validation_data is not None and keras_bridge.overridden(self.model, ("evaluate",)):
            validation = self._own_evaluate(
                validation_data, validation_batch_size or batch_size, validation_steps
            )
        elif validation_data is not None:
            validation = self._open(
                "evaluate",
                keras_bridge.unpack(validation_data),
                budget,
                steps_per_execution,
                batch_size=validation_batch_size or batch_size,
                steps=validation_steps,
            )
        self._check_same_run(epochs=epochs, steps_per_epoch=feed.steps, batch_size=batch_size)
        callback_list = self._callbacks(callbacks, verbose, feed, epochs=epochs, add_history=True)
        with self._observed("fit"):
            self.runner.train(
                feed,
                validation,
                steps_per_execution,
                callback_list,
                range(initial_epoch, epochs),
                validation_freq,
            )
        self.runner.programs.release()
        return self.model.history

    def _own_evaluate(
        self, validation_data: Data, batch_size: int | None, steps: int | None
    ) -> Validate:
        """Return the validation by a model's own `evaluate`, called as stock Keras calls it."""
        x, y, sample_weight = keras_bridge.unpack(validation_data)
        return partial(
            self.model.evaluate,
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps=steps,
            return_dict=True,
            _use_cached_eval_dataset=True,
        )

    def evaluate(
        self,
        x: Data = None,
        y: Data = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        sample_weight: Data = None,
        steps: int | None = None,
        callbacks: Callbacks = None,
        return_dict: bool = False,
        **kwargs: bool,
    ) -> Logs | list[float] | float:
        """Compute loss and metrics, as `keras.Model.evaluate` does; no sample is left out."""
        # `fit` passes it to an overridden `evaluate`, which passes it on.
        kwargs.pop("_use_cached_eval_dataset", None)
        if kwargs:
            raise ValueError(f"evaluate() takes no argument {', '.join(kwargs)}.")
        self._begin("evaluate", x)
        data = x, y, sample_weight
        feed, steps_per_execution, _ = self._open_once("evaluate", data, batch_size, steps)
        callback_list = self._callbacks(callbacks, verbose, feed)
        self._check_same_run(steps=feed.steps, batch_size=batch_size)
        with self._observed("evaluate"):
            logs = self.runner.evaluate(feed, steps_per_execution, callback_list)
        self.runner.programs.release()
        return logs if return_dict else keras_bridge.flat_metrics(self.model, logs)

    def predict(
        self,
        x: Data,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Callbacks = None,
    ) -> PyTree:
        """Return the model's outputs as host arrays, as `keras.Model.predict` does."""
        self._begin("predict", x)
        data = x, None, None
        feed, steps_per_execution, budget = self._open_once("predict", data, batch_size, steps)
        self._check_same_run(steps=feed.steps, batch_size=batch_size)
        callback_list = self._callbacks(callbacks, verbose, feed)
        with self._observed("predict"):
            outputs = self.runner.predict(feed, steps_per_execution, budget, callback_list)
        self.runner.programs.release()
        return outputs

    def train_on_batch(
        self,
        x: Batch,
        y: Batch = None,
        sample_weight: Batch = None,
        class_weight: dict[int, float] | None = None,
        return_dict: bool = False,
    ) -> Logs | list[float] | float:
        """Run one weight update on one batch of all replicas and micro-batches."""
        self._begin("train_on_batch", x)
        if class_weight is not None:
            if sample_weight is not None:
                raise ValueError(
                    "Both `sample_weight` and `class_weight` were passed. Pass one of them."
                )
            sample_weight = keras_bridge.class_weight_to_sample_weights(y, class_weight)
        return self._on_batch("train", (x, y, sample_weight), return_dict)

    def test_on_batch(
        self, x: Batch, y: Batch = None, sample_weight: Batch = None, return_dict: bool = False
    ) -> Logs | list[float] | float:
        """Compute loss and metrics of one batch."""
        self._begin("test_on_batch", x)
        return self._on_batch("evaluate", (x, y, sample_weight), return_dict)

    def predict_on_batch(self, x: Batch) -> PyTree:
        """Return the outputs for one batch."""
        self._begin("predict_on_batch", x)
        x = keras_bridge.host_arrays(x)
        keras_bridge.build_for_prediction(self.model, x)
        with self._observed("predict_on_batch"):
            return self.runner.run_once("predict", (x,))

    def _on_batch(
        self, mode: Mode, batch: InputData, return_dict: bool
    ) -> Logs | list[float] | float:
        batch = keras_bridge.host_arrays(batch)
        explain = partial(checks.explain_targets, self.model, batch[1])
        keras_bridge.build_for_batch(self.model, batch, explain)
        check_batch(self.model, batch)
        self.model.reset_metrics()
        with self._observed(f"{'train' if mode == 'train' else 'test'}_on_batch"):
            logs = keras_bridge.python_logs(self.runner.run_once(mode, batch))
        if return_dict:
            return logs
        values = {name: value for name, value in logs.items() if name not in LOGS}
        return keras_bridge.flat_metrics(self.model, values)

    def _observed(self, name: str) -> AbstractContextManager[None]:
        return self.runner.observer.run(name, self.model, self.runner.current)

    def _open_once(
        self, mode: Mode, data: InputData, batch_size: int | None, steps: int | None
    ) -> tuple[Feed, StepsPerExecution, Budget]:
        budget = Budget(self.prepared.data_budget)
        steps_per_execution = self.runner.steps_per_execution(mode)
        feed = self._open(
            mode, data, budget, steps_per_execution, batch_size=batch_size, steps=steps
        )
        return feed, steps_per_execution, budget

    def _open(
        self,
        mode: Mode,
        data: InputData,
        budget: Budget,
        steps_per_execution: StepsPerExecution,
        *,
        batch_size: int | None,
        steps: int | None,
        shuffle: bool | str = False,
        class_weight: dict[int, float] | None = None,
    ) -> Feed:
        config, is_known = self.runner.current, self.prepared.graph is not None
        feed = open_input(
            self.model,
            mode,
            data,
            config,
            budget,
            steps_per_execution.maximum,
            batch_size=batch_size,
            steps=steps,
            shuffle=shuffle,
            class_weight=class_weight,
            was_built=self._was_built,
        )
        self._was_built = True
        if config.pipeline is None and not is_known and stage_assignment(self.model) is not None:
            raise ValueError(
                f"{self.model.name!r} has pipeline stages, which were found only when it was built "
                "for its data. Call it on some inputs before, for example model(x[:1])."
            )
        return feed

    def _check_same_run(self, **arguments: int | None) -> None:
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

    def _callbacks(
        self,
        callbacks: Callbacks,
        verbose: str | int,
        feed: Feed,
        *,
        epochs: int = 1,
        add_history: bool = False,
    ) -> keras.callbacks.CallbackList:
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        reader = keras_bridge.weight_reading_callback(callbacks)
        if reader is not None and self.runner.current.placement.crosses_processes:
            raise ValueError(
                f"{type(reader).__name__} reads all weights while {self.model.name!r} trains, but "
                "its stages are in several processes, each with its own weights. Use "
                "convoy.Checkpoints, or put the stages of a replica into one process."
            )
        if not distributed.is_first():
            verbose, callbacks = 0, keras_bridge.without_file_writers(callbacks)
        return keras_bridge.Callbacks(
            callbacks,
            add_progbar=verbose != 0,
            verbose=verbose,
            steps=feed.steps,
            model=self.model,
            epochs=epochs,
            add_history=add_history,
        )


def attach(
    model: keras.Model,
    config: ExecutionConfig,
    data_budget: int,
    devices: Sequence[jax.Device],
    observed: Observed,
) -> None:
    """Make a model run on the engine. Its class, weights and compilation do not change.

    Args:
        model: the model.
        config: the configuration of its runs.
        data_budget: bytes of each device's memory that data may take.
        devices: the devices of the strategy.
        observed: the strategy, whose observer is used from the next run on.
    """
    prepared = PreparedModel.of(model)
    prepared.devices, prepared.data_budget = tuple(devices), data_budget
    EngineMethods(model, config, observed).attach()


def copy_to(observed: Observed, options: ModelOptions, clone: keras.Model) -> None:
    """Make a clone of a model run as the model does.

    Args:
        observed: the strategy of the model.
        options: the options of the model.
        clone: the clone.
    """
    observed.adopt(clone)
    PreparedModel.of(clone).use_options(options)


def restore_copy(
    make: Callable[..., keras.Model],
    arguments: tuple,
    strategy: Observed | None,
    options: ModelOptions,
) -> keras.Model:
    """Make a copy of a model that was copied or pickled, with the strategy that it had."""
    model = make(*arguments)
    if strategy is not None and not PreparedModel.of(model).methods:
        copy_to(strategy, options, model)
    return model
