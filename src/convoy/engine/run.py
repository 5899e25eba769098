"""The host side of the device loop: evaluation, prediction, and the epochs of `fit`."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Literal

import jax
import keras
import numpy as np
from convoy import distributed, keras_bridge
from convoy.engine import progress
from convoy.engine.async_callbacks import AsyncCallbacks
from convoy.engine.chunk_runner import Outcome
from convoy.engine.data.chunks import Feed
from convoy.engine.data.input import Budget
from convoy.engine.data.streamed import block_chunk
from convoy.engine.epoch import (
    StepFunctions,
    Uninterrupted,
    callbacks_per_execution,
    run_epoch,
)
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER, EpochCallbacks, Observer
from convoy.engine.runner_cache import RunnerCache
from convoy.engine.state import Mode
from convoy.engine.steps_per_execution import StepsPerExecution
from convoy.types import Batch, Logs, PyTree

# The fraction of the data budget that the outputs of one prediction call may take.
OUTPUT_FRACTION = 4


class HostLoop:
    """Runs one model with one configuration: device calls, and callbacks between them."""

    # What happens where, for `fit` (`engine.fit`), `evaluate` and `predict`:
    #
    #     HostLoop          the configuration, and the compiled programs of all modes (RunnerCache)
    #      | run_epoch      chooses the thread of the callbacks; adds the observer
    #      |   | run_epoch  of `engine.epoch`: chunks from the feed, callbacks between device calls
    #      |   |   | run    of the mode's `ModelRunner`: one device call
    #
    # Between two device calls, the Keras variables hold the state of the model. Callbacks may read
    # and write them.

    def __init__(self, model: keras.Model, config: ExecutionConfig) -> None:
        self.model = model
        self.automatic_steps = False
        """Whether `compile` received `steps_per_execution="auto"`."""
        self.asynchronous_callbacks = False
        """Whether callbacks are called for every step, while the devices continue."""
        self.observer: Observer = NULL_OBSERVER
        self.use(config)

    def use(self, config: ExecutionConfig, staged: ExecutionConfig | None = None) -> None:
        """Use another configuration for all later runs.

        Args:
            config: the configuration of the model as a whole.
            staged: the same for pipeline stages, if the model has them; it is the one that is used.
        """
        self.config = config
        self.current = staged or config
        self.runners = RunnerCache(self.model, self.current, self.observer)

    def observe(self, observer: Observer) -> None:
        """Change the observer; programs are then compiled again."""
        self.observer = observer
        self.use(self.config, None if self.current is self.config else self.current)

    def steps_per_execution(self, mode: Mode) -> StepsPerExecution:
        requested: int | Literal["auto"] = self.model.steps_per_execution
        if self.automatic_steps:
            requested = "auto"
        return StepsPerExecution(requested, self.current.divisions[mode].steps_per_update)

    def _shown_by(
        self, callbacks: keras.callbacks.CallbackList, mode: Mode
    ) -> contextlib.AbstractContextManager[None]:
        """Show the progress of device calls in Keras's progress bar, if there is one."""
        bar = keras_bridge.progress_bar(callbacks, mode)
        if bar is None:
            return contextlib.nullcontext()
        bar.micro_batches_per_step = self.current.divisions[mode].parts / distributed.count()
        return progress.reported_to(bar)

    def epoch_logs(self, mode: Mode, logs: Logs) -> Logs:
        """Return the logs of an epoch; for a custom step, with the values of the metrics."""
        if keras_bridge.custom_step(self.model, mode) is None:
            return dict(logs)
        return keras_bridge.epoch_logs(self.model, logs)

    def evaluate(
        self,
        feed: Feed,
        steps_per_execution: StepsPerExecution,
        callbacks: keras.callbacks.CallbackList,
        is_preempted: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """Run one pass of `evaluate`, from `on_test_begin` to `on_test_end`.

        It ends early if a callback sets `stop_evaluating`, or if the run is preempted.
        """
        model = self.model
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        logs: Logs = {}

        def end(step: int, outcomes: list[Outcome]) -> bool:
            nonlocal logs
            del step
            logs = outcomes[-1]
            return model.stop_evaluating or is_preempted()

        feed.begin_epoch()
        self.run_epoch("evaluate", feed, steps_per_execution, callbacks, end)
        values = keras_bridge.python_logs(self.epoch_logs("evaluate", logs))
        callbacks.on_test_end(values)
        return values

    def predict(
        self,
        feed: Feed,
        steps_per_execution: StepsPerExecution,
        budget: Budget,
        callbacks: keras.callbacks.CallbackList,
    ) -> PyTree:
        """Run one pass of `predict`, and return the outputs of all samples as host arrays."""
        model = self.model
        model.stop_predicting = False
        callbacks.on_predict_begin()
        outputs: list[PyTree] = []
        feed.begin_epoch()
        example = feed.example()
        if example is None:
            raise ValueError("The input yielded no batch to predict. Pass at least one.")
        max_steps = steps_per_execution.steps_per_block
        max_steps = self.runners.get("predict").limit_outputs(
            example, budget.left // OUTPUT_FRACTION, min(max_steps, feed.steps or max_steps)
        )

        def end(step: int, outcomes: list[Outcome]) -> bool:
            del step
            outputs.append(_concatenate(outcomes))
            return model.stop_predicting

        self.run_epoch("predict", feed, steps_per_execution, callbacks, end, max_steps=max_steps)
        callbacks.on_predict_end()
        return _writable(_concatenate(outputs))

    def run_epoch(
        self,
        mode: Mode,
        feed: Feed,
        steps_per_execution: StepsPerExecution,
        callbacks: keras.callbacks.CallbackList,
        end: Callable[[int, list[Outcome]], bool],
        *,
        done: int = 0,
        max_steps: int | None = None,
    ) -> int:
        """Run the rest of an epoch with its observer, and with callbacks in the right thread.

        Args:
            mode: the mode of the run.
            feed: its data.
            steps_per_execution: steps between callbacks.
            callbacks: the callbacks.
            end: function that is called after the callbacks; see `StepFunctions`.
            done: steps of the epoch that are done.
            max_steps: maximum number of steps in one device call, if it is smaller than
                `steps_per_execution`.

        Returns:
            The number of the epoch's steps that are done.
        """
        model_runner = self.runners.get(mode)
        functions = _step_functions(mode, callbacks, end)
        # The last logs include the earlier steps of the epoch.
        join = _concatenate if mode == "predict" else itemgetter(-1)
        if not self.asynchronous_callbacks:
            called = callbacks_per_execution(functions, steps_per_execution, join)
            runner, feed, called = self.observer.epoch(mode, model_runner, feed, called)
            with self._shown_by(callbacks, mode):
                return run_epoch(feed, runner, called, steps_per_execution, done, max_steps)
        split = partial(_rows_by_replica if mode == "predict" else _repeated, self.current.replicas)
        with AsyncCallbacks(functions.begin, functions.batch_end, split) as thread:

            def wait_and_end(step: int, outcomes: list[Outcome]) -> bool:
                thread.wait()
                return end(step, outcomes)

            called = EpochCallbacks(thread.start_at, wait_and_end)
            runner, feed, called = self.observer.epoch(mode, model_runner, feed, called)
            # One weight update per device call; the next one is already queued on the devices.
            max_steps = self.current.divisions[mode].steps_per_update
            with self._shown_by(callbacks, mode):
                return run_epoch(
                    feed, thread.wrap(runner), called, steps_per_execution, done, max_steps
                )

    def run_once(self, mode: Mode, batch: Batch) -> Outcome:
        """Run one step on one batch, as `train_on_batch` and the like do.

        The batch is that of a complete weight update, over all replicas and micro-batches.
        """
        runner = self.observer.runner(mode, self.runners.get(mode))
        block = jax.tree.map(lambda leaf: np.asarray(leaf)[None], batch)
        config = self.current
        division = replace(config, batch="global").divisions[mode]
        sharded = jax.tree.leaves(block)[0].shape[1] % division.parts == 0
        with Uninterrupted():
            outcome = runner.run(block_chunk(block, 1, config.placement, division, sharded))
        return _writable(outcome) if mode == "predict" else outcome


def _step_functions(
    mode: Mode, callbacks: keras.callbacks.CallbackList, end: Callable[[int, list[Outcome]], bool]
) -> StepFunctions:
    if mode == "train":
        return StepFunctions(callbacks.on_train_batch_begin, callbacks.on_train_batch_end, end)
    if mode == "evaluate":
        return StepFunctions(callbacks.on_test_batch_begin, callbacks.on_test_batch_end, end)

    def batch_end(step: int, outputs: PyTree) -> None:
        callbacks.on_predict_batch_end(step, {"outputs": outputs})

    return StepFunctions(callbacks.on_predict_batch_begin, batch_end, end)


def _repeated(replicas: int, logs: Logs) -> list[Logs]:
    return [logs] * replicas


def _rows_by_replica(replicas: int, outputs: PyTree) -> list[PyTree]:
    """Divide the outputs of a step over replicas; those of an incomplete batch are not divided."""
    rows = len(jax.tree.leaves(outputs)[0])
    if rows % replicas:
        return [outputs]
    size = rows // replicas
    return [
        jax.tree.map(lambda leaf, first=first: leaf[first : first + size], outputs)
        for first in range(0, rows, size)
    ]


def _concatenate(parts: list[PyTree]) -> PyTree:
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *p: np.concatenate(p), *parts)


def _writable(outputs: PyTree) -> PyTree:
    """Return writable arrays, as in stock Keras; read-only ones are copied."""
    return jax.tree.map(lambda leaf: np.require(leaf, requirements="W"), outputs)
