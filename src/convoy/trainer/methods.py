"""The methods of `keras.Model` that run on the engine, with Keras's own signatures."""

from functools import partial
from typing import TypeAlias

import keras
from convoy import distributed, keras_bridge
from convoy.engine import checks, random_state
from convoy.engine.data.chunks import Feed
from convoy.engine.data.input import Budget, InputData, check_batch, open_input
from convoy.engine.fit import Fit, Validate
from convoy.engine.numerics.numerics import LOGS, Numerics
from convoy.engine.state import Mode
from convoy.engine.steps_per_execution import StepsPerExecution
from convoy.pipeline.stages import stage_assignment
from convoy.trainer.engine_model import EngineModel
from convoy.trainer.gathered_state import GatheredState
from convoy.types import Batch, Data, Logs, PyTree

Callbacks: TypeAlias = "list[keras.callbacks.Callback] | keras.callbacks.CallbackList | None"


class TrainerMethods:
    """The methods that `keras.Model` calls in place of Keras's.

    An override in the model's class runs first. The class does not change: the model is saved,
    cloned and printed as under stock Keras.
    """

    def __init__(self, engine_model: EngineModel) -> None:
        self.engine_model = engine_model
        self.model = engine_model.model
        self.host_loop = engine_model.host_loop

    def compile(self, *args: object, **kwargs: object) -> None:
        """Configure the model for training, as `keras.Model.compile` does.

        `steps_per_execution` is the number of steps in one device call; `"auto"` chooses a
        number for which callbacks run at least once a second.
        """
        requested = checks.check_steps_per_execution(kwargs.get("steps_per_execution", 1))
        self.host_loop.automatic_steps = requested == "auto"
        if requested == "auto":
            # Stock Keras does not know this value, so it does not go into a saved model.
            kwargs["steps_per_execution"] = 1
        settings = self.engine_model.prepared.numerics.settings
        if settings.loss_scaling is not None:
            # The strategy's loss scale replaces the one that Keras adds for mixed_float16.
            kwargs["auto_scale_loss"] = False
        keras_bridge.stock_method(self.model, "compile")(*args, **kwargs)
        self.engine_model.prepared.numerics = Numerics(settings)

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

        `batch_size` is the micro-batch of one replica, unless the strategy has `batch="global"`.
        """
        x = self.engine_model.begin("fit", x)
        if self.engine_model.processes > 1:
            random_state.use_state_of_first_process()
        epochs = keras_bridge.limit_epochs(epochs)
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = keras_bridge.train_validation_split(
                (x, y, sample_weight), validation_split=validation_split
            )
        validates = validation_data is not None
        has_own_evaluate = validates and bool(keras_bridge.overridden(self.model, ("evaluate",)))
        if validates and not has_own_evaluate:
            has_stages = self.host_loop.current.pipeline is not None
            self.engine_model.check_custom_step("evaluate", has_stages)
        budget = Budget(self.engine_model.prepared.data_budget)
        steps_per_execution = self.host_loop.steps_per_execution("train")
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
        if has_own_evaluate:
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
        callback_list = self._callbacks(callbacks, verbose, feed, epochs=epochs, add_history=True)
        with self.engine_model.run(
            "fit", epochs=epochs, steps_per_epoch=feed.steps, batch_size=batch_size
        ):
            Fit(
                self.host_loop,
                feed,
                validation,
                steps_per_execution,
                callback_list,
                range(initial_epoch, epochs),
                validation_freq,
            ).run()
        return self.model.history

    def _own_evaluate(
        self, validation_data: Data, batch_size: int | None, steps: int | None
    ) -> Validate:
        """Return a function that calls the model's own `evaluate` as stock Keras does."""
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
        """Compute loss and metrics, as `keras.Model.evaluate` does; no sample is dropped."""
        # `fit` passes it to an overridden `evaluate`, which passes it on.
        kwargs.pop("_use_cached_eval_dataset", None)
        if kwargs:
            raise ValueError(f"evaluate() takes no argument {', '.join(kwargs)}.")
        x = self.engine_model.begin("evaluate", x)
        data = x, y, sample_weight
        feed, steps_per_execution, _ = self._open_once("evaluate", data, batch_size, steps)
        callback_list = self._callbacks(callbacks, verbose, feed)
        with self.engine_model.run("evaluate", steps=feed.steps, batch_size=batch_size):
            logs = self.host_loop.evaluate(feed, steps_per_execution, callback_list)
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
        x = self.engine_model.begin("predict", x)
        data = x, None, None
        feed, steps_per_execution, budget = self._open_once("predict", data, batch_size, steps)
        callback_list = self._callbacks(callbacks, verbose, feed)
        with self.engine_model.run("predict", steps=feed.steps, batch_size=batch_size):
            return self.host_loop.predict(feed, steps_per_execution, budget, callback_list)

    def train_on_batch(
        self,
        x: Batch,
        y: Batch = None,
        sample_weight: Batch = None,
        class_weight: dict[int, float] | None = None,
        return_dict: bool = False,
    ) -> Logs | list[float] | float:
        """Run one weight update on one batch of all replicas and micro-batches."""
        x = self.engine_model.begin("train_on_batch", x)
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
        x = self.engine_model.begin("test_on_batch", x)
        return self._on_batch("evaluate", (x, y, sample_weight), return_dict)

    def predict_on_batch(self, x: Batch) -> PyTree:
        """Return the outputs for one batch."""
        x = self.engine_model.begin("predict_on_batch", x)
        x = keras_bridge.host_arrays(x)
        keras_bridge.build_for_prediction(self.model, x)
        with self.engine_model.run("predict_on_batch"):
            return self.host_loop.run_once("predict", (x,))

    def _on_batch(
        self, mode: Mode, batch: InputData, return_dict: bool
    ) -> Logs | list[float] | float:
        batch = keras_bridge.host_arrays(batch)
        explain = partial(checks.explain_targets, self.model, batch[1])
        keras_bridge.build_for_batch(self.model, batch, explain)
        check_batch(self.model, batch)
        self.model.reset_metrics()
        with self.engine_model.run(f"{'train' if mode == 'train' else 'test'}_on_batch"):
            logs = keras_bridge.python_logs(self.host_loop.run_once(mode, batch))
        if return_dict:
            return logs
        values = {name: value for name, value in logs.items() if name not in LOGS}
        return keras_bridge.flat_metrics(self.model, values)

    def _open_once(
        self, mode: Mode, data: InputData, batch_size: int | None, steps: int | None
    ) -> tuple[Feed, StepsPerExecution, Budget]:
        budget = Budget(self.engine_model.prepared.data_budget)
        steps_per_execution = self.host_loop.steps_per_execution(mode)
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
        """Return the feed of a run, after checking its data and building the model for it."""
        config, was_built = self.host_loop.current, self.engine_model.was_built
        feed = open_input(
            self.model,
            mode,
            data,
            config,
            budget,
            steps_per_execution.steps_per_block,
            batch_size=batch_size,
            steps=steps,
            shuffle=shuffle,
            class_weight=class_weight,
            was_built=was_built,
        )
        self.engine_model.was_built = True
        if not was_built and config.pipeline is None and stage_assignment(self.model) is not None:
            raise ValueError(
                f"{self.model.name!r} has pipeline stages, which were found only when it was built "
                "for its data. Call the model on some inputs first, for example model(x[:1])."
            )
        return feed

    def _callbacks(
        self,
        callbacks: Callbacks,
        verbose: str | int,
        feed: Feed,
        *,
        epochs: int = 1,
        add_history: bool = False,
    ) -> keras.callbacks.CallbackList:
        placement = self.host_loop.current.placement
        if placement.is_compile_only:
            # There are no results for callbacks, and some callbacks write files.
            verbose, callbacks = 0, None
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        reader = placement.crosses_processes and keras_bridge.weight_reading_callback(callbacks)
        if reader:
            raise ValueError(
                f"{type(reader).__name__} reads all weights while {self.model.name!r} trains, but "
                "its stages are in several processes, each with its own weights. Use "
                "convoy.Checkpoints, or put the stages of a replica into one process."
            )
        # Decided before callbacks are removed, because all processes must gather together.
        gathers = bool(callbacks) and placement.spans_processes and self.host_loop.current.shard
        if self.engine_model.processes > 1 and not distributed.is_first():
            verbose, callbacks = 0, keras_bridge.without_file_writers(callbacks)
        if gathers:
            if self.host_loop.asynchronous_callbacks:
                raise ValueError(
                    "set_asynchronous_callbacks(True) is not supported with "
                    f"shard={self.host_loop.current.shard!r} in several processes: callbacks could "
                    "not read the shards of other processes. Leave one of them out."
                )
            callbacks = [GatheredState(placement), *keras.tree.flatten(callbacks)]
        counted = {}
        if self.engine_model.prepared.counts_batches_of_replicas:
            counted["batches_per_step"] = self.host_loop.current.replicas
        return keras_bridge.Callbacks(
            callbacks,
            **counted,
            add_progbar=verbose != 0,
            verbose=verbose,
            steps=feed.steps,
            model=self.model,
            epochs=epochs,
            add_history=add_history,
        )
