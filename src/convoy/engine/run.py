"""Fit, evaluate and predict: the host's side of the device loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
from convoy import keras_bridge
from convoy.engine import check
from convoy.engine.feed import Budget, Chunk, Feed, Placement, size
from convoy.engine.pace import Pace, make_pace
from convoy.engine.program import Mode, ProgramCache, Programs
from convoy.engine.resident import Resident
from convoy.engine.streamed import Streamed
from convoy.keras_bridge import Batches

DEFAULT_BATCH = 32
# Of the memory for data, what the outputs of one prediction call may take.
OUTPUT_SHARE = 4


class Runner:
    """Runs one model on one placement."""

    def __init__(self, model: keras.Model, placement: Placement) -> None:
        self.model = model
        self.placement = placement
        self.automatic = False
        """Whether `compile` was told `steps_per_execution="auto"`."""
        self._programs = ProgramCache(model, placement)

    def pace(self) -> Pace:
        return make_pace("auto" if self.automatic else self.model.steps_per_execution)

    # Feeding ---------------------------------------------------------------------------------

    def open(
        self,
        mode: Mode,
        data: tuple[Any, Any, Any],
        budget: Budget,
        pace: Pace,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        shuffle: bool | str = False,
        class_weight: dict[int, float] | None = None,
    ) -> Feed:
        """Build the model for the data, check both, and start moving the data."""
        x, y, sample_weight = data
        is_array = keras_bridge.is_array_data(data)
        per_batch = 1 if is_array else self.placement.replicas
        if is_array:
            samples = check.count_samples(x)
            if batch_size is None:
                per_step = self.placement.replicas * (steps or 1)
                batch_size = -(-samples // per_step) if steps else DEFAULT_BATCH
            batch_size *= self.placement.replicas
            check.check_size(x, batch_size, self.placement.replicas, training=mode == "train")
            if mode == "train" and self.placement.replicas > 1 and samples % batch_size:
                warnings.warn(
                    f"{samples % batch_size} of {samples} samples do not fill a weight update of "
                    f"{batch_size} and are left out of each epoch. Choose a batch_size that "
                    "divides the data, or trim it.",
                    stacklevel=3,
                )
        batches = Batches(
            x, y, sample_weight, batch_size, steps and steps * per_batch, shuffle, class_weight
        )
        arrays = batches.arrays
        if arrays is not None:
            check.check_inputs(self.model, keras_bridge.unpack(arrays)[0])
        self._build(batches, mode)
        if arrays is not None:
            check.check_targets(self.model, keras_bridge.unpack(arrays)[1])
        complete = mode != "train"
        if arrays is not None and budget.reserve(size(arrays)):
            return Resident(arrays, batches, self.placement, complete=complete)
        return Streamed(
            batches,
            self.placement,
            budget.left,
            pace.block_steps,
            complete=complete,
            inspect=self.check_batch if arrays is None else None,
        )

    def _build(self, batches: Batches, mode: Mode) -> None:
        if mode == "predict":
            batches.build_for_prediction(self.model)
        else:
            batches.build(self.model)

    def check_batch(self, batch: Any) -> None:
        x, y, _ = keras_bridge.unpack(batch)
        check.check_inputs(self.model, x)
        check.check_targets(self.model, y)

    # Running ---------------------------------------------------------------------------------

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
        logs: dict[str, Any] = {}
        try:
            for epoch in range(keras_bridge.initial_epoch(model, epochs.start), epochs.stop):
                model.reset_metrics()
                callbacks.on_epoch_begin(epoch)
                logs = self._train_epoch(feed, pace, callbacks, epoch)
                if validation is not None and keras_bridge.should_validate(
                    model, epoch, validation_freq
                ):
                    values = self.evaluate(validation, pace, callbacks)
                    logs |= {f"val_{name}": value for name, value in values.items()}
                callbacks.on_epoch_end(epoch, logs)
                if model.stop_training:
                    break
        finally:
            if epochs.stop > 0:
                model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(logs)

    def _train_epoch(
        self, feed: Feed, pace: Pace, callbacks: keras.callbacks.CallbackList, epoch: int
    ) -> dict[str, Any]:
        logs: dict[str, Any] = {}

        def end(step: int, outcomes: list[dict[str, Any]]) -> None:
            nonlocal logs
            logs = outcomes[-1]
            callbacks.on_train_batch_end(step, logs)

        feed.begin_epoch()
        steps = walk(
            feed,
            pace,
            self._programs.get("train"),
            callbacks.on_train_batch_begin,
            end,
            lambda: self.model.stop_training,
        )
        if not steps and epoch == 0:
            raise ValueError("The input yielded no batch to train on. Pass at least one.")
        if not steps:
            warnings.warn(
                f"The input has no data left for epoch {epoch + 1}; training stops. Pass an input "
                "that can be iterated over again, or `steps_per_epoch`.",
                stacklevel=4,
            )
            self.model.stop_training = True
        return dict(logs)

    def evaluate(
        self, feed: Feed, pace: Pace, callbacks: keras.callbacks.CallbackList
    ) -> dict[str, float]:
        """Run one pass of `evaluate`, from `on_test_begin` to `on_test_end`."""
        model = self.model
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        logs: dict[str, Any] = {}

        def end(step: int, outcomes: list[dict[str, Any]]) -> None:
            nonlocal logs
            logs = outcomes[-1]
            callbacks.on_test_batch_end(step, logs)

        feed.begin_epoch()
        walk(
            feed,
            pace,
            self._programs.get("evaluate"),
            callbacks.on_test_batch_begin,
            end,
            lambda: model.stop_evaluating,
        )
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
        programs = self._programs.get("predict")
        parts: list[Any] = []
        feed.begin_epoch()
        example = feed.example()
        if example is None:
            raise ValueError("The input yielded no batch to predict. Pass at least one.")
        share = budget.left // OUTPUT_SHARE
        most = programs.limit_outputs(example, share, pace.block_steps)

        def end(step: int, outcomes: list[Any]) -> None:
            outputs = _join(outcomes)
            parts.append(outputs)
            callbacks.on_predict_batch_end(step, {"outputs": outputs})

        walk(
            feed,
            pace,
            programs,
            callbacks.on_predict_batch_begin,
            end,
            lambda: model.stop_predicting,
            most,
        )
        callbacks.on_predict_end()
        return _join(parts)

    def run_once(self, mode: Mode, batch: tuple) -> Any:
        """Run one step on one batch, as `train_on_batch` and its sisters do."""
        programs = self._programs.get(mode)
        block = jax.tree.map(lambda leaf: np.asarray(leaf)[None], batch)
        samples = jax.tree.leaves(block)[0].shape[1]
        spread = samples % self.placement.replicas == 0
        place = self.placement.divided if spread else self.placement.everywhere
        return programs.run(Chunk("block", place(block), samples, 1, spread))


def walk(
    feed: Feed,
    pace: Pace,
    programs: Programs,
    begin: Callable[[int], None],
    end: Callable[[int, list[Any]], None],
    stopped: Callable[[], bool],
    most: int | None = None,
) -> int:
    """Run what is left of a feed's epoch, with callbacks around every `pace.steps` steps.

    Args:
        feed: where the data comes from.
        pace: how many steps are between callbacks.
        programs: what runs a chunk of data.
        begin: called with the number of the first step.
        end: called with the number of the last step and the outcome of every device call.
        stopped: whether a callback has asked to stop.
        most: steps that one device call can run, if that is fewer than `pace.steps`.

    Returns:
        The number of steps that were run.
    """
    done = 0
    while not stopped():
        left = pace.steps
        chunk = feed.next(min(left, most or left))
        if chunk is None:
            break
        begin(done)
        outcomes = []
        while chunk is not None:
            outcomes.append(programs.run(chunk))
            done += chunk.count
            left -= chunk.count
            following = left or pace.steps
            feed.prefetch(min(following, most or following))
            chunk = feed.next(min(left, most or left)) if left else None
        pace.observe(pace.steps - left, outcomes)
        end(done - 1, outcomes)
    return done


def _join(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *p: np.concatenate(p), *parts)
