"""Fit, evaluate and predict: the host side of the device loop."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType
from typing import Literal

import jax
import keras
import numpy as np
from convoy import distributed, keras_bridge, user_warnings
from convoy.engine import progress as engine_progress
from convoy.engine.async_callbacks import AsyncCallbacks
from convoy.engine.checkpointer import Checkpointer, Progress, Resumption, find_checkpointer
from convoy.engine.chunk_runner import ChunkRunner, Outcome
from convoy.engine.data.chunks import Feed
from convoy.engine.data.input import Budget
from convoy.engine.data.streamed import block_chunk
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER, EpochCallbacks, Observer
from convoy.engine.program import ProgramCache
from convoy.engine.state import Mode
from convoy.engine.steps_per_execution import StepsPerExecution
from convoy.types import Batch, Logs, PyTree

Validate = Callable[..., Logs]
"""Takes the list of callbacks as `callbacks`, and returns the logs of an evaluation."""

# The fraction of the data budget that the outputs of one prediction call may take.
OUTPUT_FRACTION = 4


class Runner:
    """Runs one model with one configuration."""

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
        self.programs = ProgramCache(self.model, self.current, self.observer)

    def observe(self, observer: Observer) -> None:
        """Change the observer; programs are then compiled again."""
        self.observer = observer
        self.use(self.config, None if self.current is self.config else self.current)

    def steps_per_execution(self, mode: Mode) -> StepsPerExecution:
        requested: int | Literal["auto"] = self.model.steps_per_execution
        if self.automatic_steps:
            requested = "auto"
        return StepsPerExecution(requested, self.current.divisions[mode].steps_per_update)

    def train(
        self,
        feed: Feed,
        validation: Feed | Validate | None,
        steps_per_execution: StepsPerExecution,
        callbacks: keras.callbacks.CallbackList,
        epochs: range,
        validation_freq: int | list[int],
    ) -> None:
        """Run the epochs of `fit`, from `on_train_begin` to `on_train_end`."""
        model = self.model
        model.stop_training = False
        self._explained_nan = False
        callbacks.on_train_begin()
        first = distributed.from_first(keras_bridge.initial_epoch(model, epochs.start))
        progress = Progress(
            model, self.current, feed, callbacks.callbacks, first, last_epoch=epochs.stop
        )
        checkpointer = find_checkpointer(callbacks.callbacks)
        try:
            resumption = None if checkpointer is None else _resume(progress, checkpointer)
            while progress.epoch < epochs.stop and not (resumption and progress.finished):
                epoch = progress.epoch
                model.reset_metrics()
                callbacks.on_epoch_begin(epoch)
                logs = self._train_epoch(
                    steps_per_execution, callbacks, progress, checkpointer, resumption
                )
                resumption = None
                if validation is not None and keras_bridge.should_validate(
                    model, epoch, validation_freq
                ):
                    logs |= self._validate(validation, callbacks, progress, checkpointer)
                self.observer.end_epoch(callbacks.on_epoch_end, epoch, logs)
                if not self._explained_nan and np.isnan(logs.get("loss", 0.0)).any():
                    self._explain_nan(epoch, feed)
                progress.epoch, progress.step, progress.logs = epoch + 1, 0, logs
                if checkpointer is not None:
                    checkpointer.save_if_due(progress)
                if model.stop_training:
                    break
        finally:
            if checkpointer is not None:
                checkpointer.end_run()
            if epochs.stop > 0:
                model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(progress.logs)

    def _explain_nan(self, epoch: int, feed: Feed) -> None:
        self._explained_nan = True
        found = feed.first_not_finite()
        user_warnings.warn(
            f"The loss is NaN at the end of epoch {epoch + 1}. "
            f"{found or 'The inputs are finite: a lower learning rate may help.'}"
        )

    def _train_epoch(
        self,
        steps_per_execution: StepsPerExecution,
        callbacks: keras.callbacks.CallbackList,
        progress: Progress,
        checkpointer: Checkpointer | None,
        resumption: Resumption | None,
    ) -> Logs:
        feed = progress.feed
        resumed = 0
        if resumption is None:
            feed.begin_epoch()
        else:
            if resumption.step:
                resumption.restore()
            resumed = feed.seek(resumption.position)
            progress.step = resumed

        def end(step: int, outcomes: list[Outcome]) -> None:
            progress.total += step + 1 - progress.step
            progress.step, progress.logs = step + 1, outcomes[-1]
            if checkpointer is not None:
                checkpointer.save_if_due(progress)

        if resumed and self.model.stop_training:
            return dict(progress.logs)
        with self._shown_by(callbacks, "train"):
            steps = self._run_epoch(
                "train",
                feed,
                steps_per_execution,
                (callbacks.on_train_batch_begin, callbacks.on_train_batch_end, end),
                lambda: self.model.stop_training,
                done=resumed,
            )
        if not steps and progress.epoch == 0:
            raise ValueError("The input yielded no batch to train on. Pass at least one.")
        if not steps:
            user_warnings.warn(
                f"The input has no data left for epoch {progress.epoch + 1}; training stops. Pass "
                "an input that can be iterated over again, or `steps_per_epoch`."
            )
            self.model.stop_training = True
            return {}
        return self._epoch_logs("train", progress.logs)

    def _shown_by(
        self, callbacks: keras.callbacks.CallbackList, mode: Mode
    ) -> contextlib.AbstractContextManager[None]:
        """Show the progress of device calls in Keras's progress bar, if there is one."""
        bar = keras_bridge.progress_bar(callbacks, mode)
        if bar is None:
            return contextlib.nullcontext()
        bar.micro_batches_per_step = self.current.divisions[mode].parts / distributed.count()
        return engine_progress.observed_by(bar)

    def _epoch_logs(self, mode: Mode, logs: Logs) -> Logs:
        """Return the logs of an epoch; for a custom step, with the values of the metrics."""
        if keras_bridge.custom_step(self.model, mode) is None:
            return dict(logs)
        return keras_bridge.epoch_logs(self.model, logs)

    def _validate(
        self,
        validation: Feed | Validate,
        callbacks: keras.callbacks.CallbackList,
        progress: Progress,
        checkpointer: Checkpointer | None,
    ) -> dict[str, float]:
        progress.metrics = keras_bridge.values(self.model.metrics_variables)
        is_preempted = checkpointer.is_preempted if checkpointer is not None else lambda: False
        steps_per_execution = self.steps_per_execution("evaluate")
        if callable(validation):
            values = validation(callbacks=callbacks)
        else:
            values = self.evaluate(validation, steps_per_execution, callbacks, is_preempted)
        if checkpointer is not None and is_preempted():
            checkpointer.save_if_due(progress)
        progress.metrics = None
        return {f"val_{name}": value for name, value in values.items()}

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

        def end(step: int, outcomes: list[Outcome]) -> None:
            nonlocal logs
            del step
            logs = outcomes[-1]

        feed.begin_epoch()
        with self._shown_by(callbacks, "evaluate"):
            self._run_epoch(
                "evaluate",
                feed,
                steps_per_execution,
                (callbacks.on_test_batch_begin, callbacks.on_test_batch_end, end),
                lambda: model.stop_evaluating or is_preempted(),
            )
        values = keras_bridge.python_logs(self._epoch_logs("evaluate", logs))
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
        maximum = steps_per_execution.maximum
        max_steps = self.programs.get("predict").limit_outputs(
            example, budget.left // OUTPUT_FRACTION, min(maximum, feed.steps or maximum)
        )

        def on_batch_end(step: int, outputs: PyTree) -> None:
            callbacks.on_predict_batch_end(step, {"outputs": outputs})

        def end(step: int, outcomes: list[Outcome]) -> None:
            del step
            outputs.append(_concatenate(outcomes))

        self._run_epoch(
            "predict",
            feed,
            steps_per_execution,
            (callbacks.on_predict_batch_begin, on_batch_end, end),
            lambda: model.stop_predicting,
            max_steps=max_steps,
        )
        callbacks.on_predict_end()
        return _writable(_concatenate(outputs))

    def _run_epoch(
        self,
        mode: Mode,
        feed: Feed,
        steps_per_execution: StepsPerExecution,
        functions: tuple[
            Callable[[int], None],
            Callable[[int, Outcome], None],
            Callable[[int, list[Outcome]], None],
        ],
        is_stopped: Callable[[], bool],
        *,
        done: int = 0,
        max_steps: int | None = None,
    ) -> int:
        """Run the rest of an epoch with its observer, and with callbacks in the right thread.

        Args:
            mode: the mode of the run.
            feed: its data.
            steps_per_execution: steps between callbacks.
            functions: a callback before some steps; a callback that takes their outcome; and a
                function that is called after the callbacks.
            is_stopped: returns whether a callback has stopped the run.
            done: steps of the epoch that are done.
            max_steps: maximum number of steps in one device call, if it is smaller than
                `steps_per_execution`.

        Returns:
            The number of the epoch's steps that are done.
        """
        begin, batch_end, end = functions
        model_runner = self.programs.get(mode)
        if not self.asynchronous_callbacks:
            last_of_execution = 0

            def note_and_begin(step: int) -> None:
                nonlocal last_of_execution
                last_of_execution = step + steps_per_execution.value - 1
                begin(step)

            def call_and_end(step: int, outcomes: list[Outcome]) -> None:
                last = _concatenate(outcomes) if mode == "predict" else outcomes[-1]
                # Keras counts a short last execution as a complete one.
                batch_end(step if steps_per_execution.automatic else last_of_execution, last)
                end(step, outcomes)

            callbacks = EpochCallbacks(note_and_begin, call_and_end)
            runner, feed, callbacks = self.observer.epoch(mode, model_runner, feed, callbacks)
            return run_epoch(
                feed, runner, callbacks, steps_per_execution, is_stopped, done, max_steps
            )
        split = partial(_rows_by_replica if mode == "predict" else _repeated, self.current.replicas)
        with AsyncCallbacks(begin, batch_end, split) as thread:

            def wait_and_end(step: int, outcomes: list[Outcome]) -> None:
                thread.wait()
                end(step, outcomes)

            callbacks = EpochCallbacks(thread.start_at, wait_and_end)
            runner, feed, callbacks = self.observer.epoch(mode, model_runner, feed, callbacks)
            # One weight update per device call; the next one is already queued on the devices.
            max_steps = self.current.divisions[mode].steps_per_update
            runner = thread.wrap(runner)
            return run_epoch(
                feed, runner, callbacks, steps_per_execution, is_stopped, done, max_steps
            )

    def run_once(self, mode: Mode, batch: Batch) -> Outcome:
        """Run one step on one batch, as `train_on_batch` and the like do.

        The batch is that of a complete weight update, over all replicas and micro-batches.
        """
        runner = self.observer.runner(mode, self.programs.get(mode))
        block = jax.tree.map(lambda leaf: np.asarray(leaf)[None], batch)
        config = self.current
        division = replace(config, batch="global").divisions[mode]
        sharded = jax.tree.leaves(block)[0].shape[1] % division.parts == 0
        with Uninterrupted():
            outcome = runner.run(block_chunk(block, 1, config.placement, division, sharded))
        return _writable(outcome) if mode == "predict" else outcome


def run_epoch(
    feed: Feed,
    runner: ChunkRunner,
    callbacks: EpochCallbacks,
    steps_per_execution: StepsPerExecution,
    is_stopped: Callable[[], bool],
    done: int = 0,
    max_steps: int | None = None,
) -> int:
    """Run the rest of an epoch, with callbacks after every `steps_per_execution` steps.

    A device call is asynchronous: `runner.run` returns before the device has computed. The next
    chunk is prefetched immediately, so it is read and transferred in the meantime.

    Args:
        feed: the data of the epoch.
        runner: runs its chunks.
        callbacks: called before and after `steps_per_execution` steps.
        steps_per_execution: steps between callbacks.
        is_stopped: returns whether a callback has stopped the run.
        done: steps of the epoch that are done.
        max_steps: maximum number of steps in one device call.

    Returns:
        The number of the epoch's steps that are done.
    """
    uninterrupted = Uninterrupted()
    while True:
        steps = steps_per_execution.value
        start = time.perf_counter()
        # As in stock Keras, the first callback of an epoch runs before its data is read, except for
        # an input of unknown length, which may be at its end.
        is_first = done == 0 and feed.steps is not None
        if is_first:
            callbacks.begin(done)
        chunk = feed.next(min(steps, max_steps or steps))
        if chunk is None:
            return done
        if not is_first:
            callbacks.begin(done)
        left = steps
        outcomes: list[Outcome] = []
        while chunk is not None:
            with uninterrupted, engine_progress.compiling(is_first and not outcomes):
                outcomes.append(runner.run(chunk))
            left -= chunk.steps
            following = left or steps
            feed.prefetch(min(following, max_steps or following))
            chunk = feed.next(min(left, max_steps or left)) if left else None
        done += steps - left
        if steps_per_execution.automatic:
            steps_per_execution.adapt(steps - left, outcomes, start)
        engine_progress.follow()
        callbacks.end(done - 1, outcomes)
        if is_stopped():
            return done


class Uninterrupted:
    """A context that delays Ctrl-C until the end of the block; a second one takes effect at once.

    A device call takes the values of the variables away and returns new ones. An exception in
    between would leave the model without weights.
    """

    def __init__(self) -> None:
        self._is_pending = False
        self._previous: Callable[[int, FrameType | None], object] | None = None

    def __enter__(self) -> None:
        self._is_pending = False
        self._previous = None
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._previous = handler
            signal.signal(signal.SIGINT, self._postpone)

    def _postpone(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending and self._previous is not None:
            self._previous(number, frame)
        self._is_pending = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is None:
            return
        signal.signal(signal.SIGINT, self._previous)
        if self._is_pending and error is None:
            self._previous(signal.SIGINT, None)


def _resume(progress: Progress, checkpointer: Checkpointer) -> Resumption | None:
    """Restore the progress of an earlier run, if there is one to resume.

    Values are restored now if the run resumes between two epochs; otherwise when the epoch begins.
    """
    resumption = checkpointer.begin_run(progress)
    if resumption is None:
        return None
    progress.epoch, progress.step = resumption.epoch, resumption.step
    progress.total, progress.logs = resumption.total, resumption.logs
    if not resumption.step:
        resumption.restore()
    progress.model.stop_training = resumption.stopped
    return resumption


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
