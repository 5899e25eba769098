"""A run of `fit`: epochs of training, with validation and checkpoints between them."""

from collections.abc import Callable

import keras
import numpy as np
from convoy import distributed, keras_bridge, user_warnings
from convoy.engine.checkpointer import Resumption, RunState, find_checkpointer, resume
from convoy.engine.chunk_runner import Outcome
from convoy.engine.data.chunks import Feed
from convoy.engine.run import HostLoop
from convoy.engine.steps_per_execution import StepsPerExecution
from convoy.types import Logs

Validate = Callable[..., Logs]
"""Takes the list of callbacks as `callbacks`, and returns the logs of an evaluation."""


class Fit:
    """A run of `fit`, from `on_train_begin` to `on_train_end`.

    Args:
        loop: host loop of the model.
        feed: the training data.
        validation: the validation data, or a function that evaluates the model; `None` for no
            validation.
        steps_per_execution: steps between callbacks.
        callbacks: the callbacks.
        epochs: the epochs to run, if the run does not resume an earlier one.
        validation_freq: as in `keras.Model.fit`.
    """

    def __init__(
        self,
        loop: HostLoop,
        feed: Feed,
        validation: Feed | Validate | None,
        steps_per_execution: StepsPerExecution,
        callbacks: keras.callbacks.CallbackList,
        epochs: range,
        validation_freq: int | list[int],
    ) -> None:
        self.loop, self.model = loop, loop.model
        self.feed, self.validation = feed, validation
        self.steps_per_execution, self.callbacks = steps_per_execution, callbacks
        self.epochs, self.validation_freq = epochs, validation_freq
        self.checkpointer = find_checkpointer(callbacks.callbacks)
        self._has_explained_nan = False

    def run(self) -> None:
        """Run the epochs, with all callbacks."""
        model, checkpointer = self.model, self.checkpointer
        model.stop_training = False
        self.callbacks.on_train_begin()
        first = distributed.from_first(keras_bridge.initial_epoch(model, self.epochs.start))
        run_state = RunState(
            model,
            self.loop.current,
            self.feed,
            self.callbacks.callbacks,
            first,
            last_epoch=self.epochs.stop,
        )
        try:
            resumption = None if checkpointer is None else resume(run_state, checkpointer)
            while run_state.epoch < self.epochs.stop and not (resumption and run_state.finished):
                self._run_epoch(run_state, resumption)
                resumption = None
                if checkpointer is not None:
                    checkpointer.save_if_due(run_state)
                if model.stop_training:
                    break
        finally:
            if checkpointer is not None:
                checkpointer.end_run()
            if self.epochs.stop > 0:
                model.optimizer.finalize_variable_values(model.trainable_weights)
        self.callbacks.on_train_end(run_state.logs)

    def _run_epoch(self, run_state: RunState, resumption: Resumption | None) -> None:
        """Run an epoch and its validation; a run that resumes starts inside of it."""
        model, callbacks, epoch = self.model, self.callbacks, run_state.epoch
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        logs = self._train(run_state, resumption)
        if self.validation is not None and keras_bridge.should_validate(
            model, epoch, self.validation_freq
        ):
            logs |= self._validate(self.validation, run_state)
        self.loop.observer.end_epoch(callbacks.on_epoch_end, epoch, logs)
        if not self._has_explained_nan and np.isnan(logs.get("loss", 0.0)).any():
            self._explain_nan(epoch)
        run_state.epoch, run_state.step, run_state.logs = epoch + 1, 0, logs

    def _train(self, run_state: RunState, resumption: Resumption | None) -> Logs:
        """Run the training steps of an epoch, and return its logs."""
        checkpointer = self.checkpointer
        resumed = 0
        if resumption is None:
            self.feed.begin_epoch()
        else:
            if resumption.step:
                resumption.restore()
            resumed = self.feed.seek(resumption.position)
            run_state.step = resumed

        def end(step: int, outcomes: list[Outcome]) -> bool:
            run_state.total += step + 1 - run_state.step
            run_state.step, run_state.logs = step + 1, outcomes[-1]
            if checkpointer is not None:
                checkpointer.save_if_due(run_state)
            return self.model.stop_training

        if resumed and self.model.stop_training:
            return dict(run_state.logs)
        steps = self.loop.run_epoch(
            "train", self.feed, self.steps_per_execution, self.callbacks, end, done=resumed
        )
        if not steps:
            return self._end_without_data(run_state.epoch)
        return self.loop.epoch_logs("train", run_state.logs)

    def _end_without_data(self, epoch: int) -> Logs:
        if epoch == 0:
            raise ValueError("The input yielded no batch to train on. Pass at least one.")
        user_warnings.warn(
            f"The input has no data left for epoch {epoch + 1}; training stops. Pass "
            "an input that can be iterated over again, or `steps_per_epoch`."
        )
        self.model.stop_training = True
        return {}

    def _validate(self, validation: Feed | Validate, run_state: RunState) -> dict[str, float]:
        """Evaluate the model after an epoch.

        Training and validation use the same metric variables. `RunState.metrics` holds the values
        of training meanwhile, for a checkpoint that is saved during validation.
        """
        checkpointer = self.checkpointer
        run_state.metrics = keras_bridge.values(self.model.metrics_variables)
        is_preempted = checkpointer.is_preempted if checkpointer is not None else lambda: False
        if callable(validation):
            values = validation(callbacks=self.callbacks)
        else:
            steps_per_execution = self.loop.steps_per_execution("evaluate")
            values = self.loop.evaluate(
                validation, steps_per_execution, self.callbacks, is_preempted
            )
        if checkpointer is not None and is_preempted():
            checkpointer.save_if_due(run_state)
        run_state.metrics = None
        return {f"val_{name}": value for name, value in values.items()}

    def _explain_nan(self, epoch: int) -> None:
        self._has_explained_nan = True
        found = self.feed.first_not_finite()
        user_warnings.warn(
            f"The loss is NaN at the end of epoch {epoch + 1}. "
            f"{found or 'The inputs are finite: a lower learning rate may help.'}"
        )
