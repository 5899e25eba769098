"""Fit, evaluate and predict: the host's side of the device loop."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import keras
import numpy as np
from convoy import distributed, keras_bridge
from convoy.engine.async_callbacks import Aside
from convoy.engine.checkpointer import Progress, Recorder, Resumption, recorder_among
from convoy.engine.chunk_runner import ChunkRunner
from convoy.engine.data.chunks import Budget, Feed
from convoy.engine.data.streamed import block_chunk
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.interrupt import Uninterrupted
from convoy.engine.observer import NULL_OBSERVER, Observer
from convoy.engine.program import ProgramCache
from convoy.engine.state import Mode
from convoy.engine.steps_per_execution import Pace, make_pace

# Of the memory for data, what the outputs of one prediction call may take.
OUTPUT_SHARE = 4

Begin = Callable[[int], None]
Told = Callable[[int, Any], None]
End = Callable[[int, list[Any]], None]


class Around(NamedTuple):
    """What happens to the chunks of an epoch.

    Attributes:
        programs: what runs a chunk of data.
        begin: called with the number of the first step of some.
        end: called with the number of the last one and the outcome of every device call.
        most: steps that one device call can run, if that is fewer than callbacks want.
    """

    programs: ChunkRunner
    begin: Begin
    end: End
    most: int | None


class Runner:
    """Runs one model by one config."""

    def __init__(self, model: keras.Model, config: ExecutionConfig) -> None:
        self.model = model
        self.automatic = False
        """Whether `compile` was told `steps_per_execution="auto"`."""
        self.asynchronous = False
        """Whether callbacks are told of every step, while the devices go on."""
        self.observer: Observer = NULL_OBSERVER
        self.use(config)

    def use(self, config: ExecutionConfig, staged: ExecutionConfig | None = None) -> None:
        """Run by another plan from now on; one for stages counts more, if there is one."""
        self.config = config
        self.current = staged or config
        self._programs = ProgramCache(self.model, self.current, self.observer)

    def watch(self, observer: Observer) -> None:
        """Tell another observer of runs from now on; programs are then made anew."""
        if observer is not self.observer:
            self.observer = observer
            self.use(self.config, None if self.current is self.config else self.current)

    def pace(self, mode: Mode) -> Pace:
        asked = "auto" if self.automatic else self.model.steps_per_execution
        return make_pace(asked, self.current.cut(mode).group)

    @property
    def programs(self) -> ProgramCache:
        return self._programs

    def train(
        self,
        feed: Feed,
        validation: Feed | None,
        pace: Pace,
        callbacks: keras.callbacks.CallbackList,
        epochs: range,
        validation_freq: int | list[int],
    ) -> None:
        """Run the epochs of `fit`, from `on_train_begin` to `on_train_end`."""
        model = self.model
        model.stop_training = False
        callbacks.on_train_begin()
        first = distributed.from_first(keras_bridge.initial_epoch(model, epochs.start))
        progress = Progress(
            model, self.current, feed, callbacks.callbacks, first, last_epoch=epochs.stop
        )
        recorder = recorder_among(callbacks.callbacks)
        try:
            resumption = _begin(progress, recorder)
            while progress.epoch < epochs.stop and not (resumption and progress.finished):
                epoch = progress.epoch
                model.reset_metrics()
                callbacks.on_epoch_begin(epoch)
                logs = self._train_epoch(pace, callbacks, progress, recorder, resumption)
                resumption = None
                if validation is not None and keras_bridge.should_validate(
                    model, epoch, validation_freq
                ):
                    logs |= self._validate(validation, callbacks, progress, recorder)
                self.observer.callback(callbacks.on_epoch_end)(epoch, logs)
                self.observer.epoch(epoch, logs)
                progress.end_epoch(logs)
                recorder.record(progress)
                if model.stop_training:
                    break
        finally:
            recorder.end_run()
            if epochs.stop > 0:
                model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(progress.logs)

    def _train_epoch(
        self,
        pace: Pace,
        callbacks: keras.callbacks.CallbackList,
        progress: Progress,
        recorder: Recorder,
        resumption: Resumption | None,
    ) -> dict[str, Any]:
        feed = progress.feed
        resumed = 0
        if resumption is None:
            feed.begin_epoch()
        else:
            if resumption.step:
                resumption.restore()
            resumed = feed.seek(resumption.place)
            progress.step = resumed

        def end(step: int, outcomes: list[dict[str, Any]]) -> None:
            progress.total += step + 1 - progress.step
            progress.step, progress.logs = step + 1, outcomes[-1]
            recorder.record(progress)

        if resumed and self.model.stop_training:
            return dict(progress.logs)
        tell = callbacks.on_train_batch_begin, callbacks.on_train_batch_end
        with self._telling("train", *tell, end) as around:
            watched = self.observer.feed(feed)
            steps = walk(watched, pace, around, lambda: self.model.stop_training, resumed)
        if not steps and progress.epoch == 0:
            raise ValueError("The input yielded no batch to train on. Pass at least one.")
        if not steps:
            warnings.warn(
                f"The input has no data left for epoch {progress.epoch + 1}; training stops. Pass "
                "an input that can be iterated over again, or `steps_per_epoch`.",
                stacklevel=4,
            )
            self.model.stop_training = True
            return {}
        return dict(progress.logs)

    def _validate(
        self,
        validation: Feed,
        callbacks: keras.callbacks.CallbackList,
        progress: Progress,
        recorder: Recorder,
    ) -> dict[str, float]:
        progress.metrics = keras_bridge.values(self.model.metrics_variables)
        leave = recorder.wants_to_leave
        values = self.evaluate(validation, self.pace("evaluate"), callbacks, leave)
        if leave():
            recorder.record(progress)
        progress.metrics = None
        return {f"val_{name}": value for name, value in values.items()}

    def release(self) -> None:
        """Leave the variables to this process alone, where other processes shared them."""
        self._programs.release()

    def evaluate(
        self,
        feed: Feed,
        pace: Pace,
        callbacks: keras.callbacks.CallbackList,
        leave: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """Run one pass of `evaluate`, from `on_test_begin` to `on_test_end`.

        It ends early if a callback asks for it, or `leave` does.
        """
        model = self.model
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        logs: dict[str, Any] = {}

        def end(step: int, outcomes: list[dict[str, Any]]) -> None:
            nonlocal logs
            del step
            logs = outcomes[-1]

        feed.begin_epoch()
        tell = callbacks.on_test_batch_begin, callbacks.on_test_batch_end
        with self._telling("evaluate", *tell, end) as around:
            walk(self.observer.feed(feed), pace, around, lambda: model.stop_evaluating or leave())
        values = keras_bridge.python_logs(logs)
        callbacks.on_test_end(values)
        return values

    def predict(
        self, feed: Feed, pace: Pace, budget: Budget, callbacks: keras.callbacks.CallbackList
    ) -> Any:
        """Run one pass of `predict`, from `on_predict_begin` to `on_predict_end`."""
        model = self.model
        model.stop_predicting = False
        callbacks.on_predict_begin()
        parts: list[Any] = []
        feed.begin_epoch()
        example = feed.example()
        if example is None:
            raise ValueError("The input yielded no batch to predict. Pass at least one.")
        share = budget.left // OUTPUT_SHARE
        steps = min(pace.block_steps, feed.steps or pace.block_steps)
        most = self._programs.get("predict").limit_outputs(example, share, steps)

        def told(step: int, outputs: Any) -> None:
            callbacks.on_predict_batch_end(step, {"outputs": outputs})

        def end(step: int, outcomes: list[Any]) -> None:
            del step
            parts.append(_join(outcomes))

        with self._telling("predict", callbacks.on_predict_batch_begin, told, end, most) as around:
            walk(self.observer.feed(feed), pace, around, lambda: model.stop_predicting)
        callbacks.on_predict_end()
        return _join(parts)

    @contextlib.contextmanager
    def _telling(
        self, mode: Mode, begin: Begin, told: Told, end: End, most: int | None = None
    ) -> Iterator[Around]:
        """Return what `walk` runs and calls, with callbacks and the observer in between.

        Args:
            mode: of the run.
            begin: a callback, before some steps.
            told: a callback, with the outcome of some steps.
            end: called when the callbacks were, as by `walk`.
            most: as of `Around`.
        """
        observer, predicts = self.observer, mode == "predict"
        programs = observer.programs(mode, self._programs.get(mode))
        if not self.asynchronous:

            def tell_and_end(step: int, outcomes: list[Any]) -> None:
                told(step, _join(outcomes) if predicts else outcomes[-1])
                end(step, outcomes)

            yield Around(programs, observer.callback(begin), observer.callback(tell_and_end), most)
            return
        replicas = self.current.replicas
        shares = partial(_rows_of_each if predicts else _same_for_each, replicas)
        with Aside(begin, told, shares) as aside:

            def settle_and_end(step: int, outcomes: list[Any]) -> None:
                aside.settle()
                end(step, outcomes)

            listened = aside.listening_to(programs)
            # One weight update at a time: the devices have the next one waiting.
            group = self.current.cut(mode).group
            yield Around(listened, aside.start_at, observer.callback(settle_and_end), group)

    def run_once(self, mode: Mode, batch: tuple) -> Any:
        """Run one step on one batch, as `train_on_batch` and its sisters do.

        The batch is that of a whole weight update, over all replicas and micro-batches.
        """
        programs = self.observer.programs(mode, self._programs.get(mode))
        block = jax.tree.map(lambda leaf: np.asarray(leaf)[None], batch)
        config = self.current
        cut = replace(config, batch="global").cut(mode)
        sharded = cut.shards(jax.tree.leaves(block)[0].shape[1])
        with Uninterrupted():
            return programs.run(block_chunk(block, 1, config.placement, cut, sharded=sharded))


def _begin(progress: Progress, recorder: Recorder) -> Resumption | None:
    """Ask the recorder where to begin, and go there if it is between two epochs."""
    resumption = recorder.begin_run(progress)
    if resumption is None:
        return None
    progress.epoch, progress.step = resumption.epoch, resumption.step
    progress.total, progress.logs = resumption.total, resumption.logs
    if not resumption.step:
        resumption.restore()
    progress.model.stop_training = resumption.stopped
    return resumption


def walk(feed: Feed, pace: Pace, around: Around, stopped: Callable[[], bool], done: int = 0) -> int:
    """Run what is left of a feed's epoch, with callbacks around every `pace.steps` steps.

    Args:
        feed: where the data comes from.
        pace: how many steps are between callbacks.
        around: what runs the data, and is told of it.
        stopped: whether a callback has asked to stop.
        done: steps of the epoch that are done.

    Returns:
        The number of the epoch's steps that are done.
    """
    programs, begin, end, most = around
    uninterrupted = Uninterrupted()
    while (chunk := feed.next(min(pace.steps, most or pace.steps))) is not None:
        start = time.perf_counter()
        begin(done)
        left = pace.steps
        outcomes = []
        while chunk is not None:
            with uninterrupted:
                outcomes.append(programs.run(chunk))
            left -= chunk.steps
            following = left or pace.steps
            feed.prefetch(min(following, most or following))
            chunk = feed.next(min(left, most or left)) if left else None
        done += pace.steps - left
        pace.observe(pace.steps - left, outcomes, start)
        end(done - 1, outcomes)
        if stopped():
            break
    return done


def _same_for_each(replicas: int, logs: Any) -> list[Any]:
    return [logs] * replicas


def _rows_of_each(replicas: int, outputs: Any) -> list[Any]:
    """Divide the outputs of a step by replicas; of a rest, they are those of all of them."""
    rows = len(jax.tree.leaves(outputs)[0])
    if rows % replicas:
        return [outputs]
    share = rows // replicas
    return [
        jax.tree.map(lambda leaf, first=first: leaf[first : first + share], outputs)
        for first in range(0, rows, share)
    ]


def _join(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *p: np.concatenate(p), *parts)
