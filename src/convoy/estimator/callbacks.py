"""Keras callbacks that run the hooks of an estimator and write its checkpoints."""

from collections.abc import Sequence

import keras
import numpy as np
from convoy.checkpoint.folder import Folder
from convoy.checkpoint.policy import Interval
from convoy.estimator import checkpoints
from convoy.estimator.hooks import Hook, Run
from convoy.estimator.network import Network
from convoy.types import Logs


class _HookCallback(keras.callbacks.Callback):
    """Calls hooks before the first device call, after each, and at the end."""

    def __init__(self, run: Run, hooks: Sequence[Hook]) -> None:
        super().__init__()
        self.run, self.hooks = run, hooks

    def notify(self, event: str) -> None:
        for hook in self.hooks:
            getattr(hook, event)(self.run)

    def finish(self) -> None:
        """End the run."""
        self.notify("end")


class TrainingCallback(_HookCallback):
    """Counts steps, calls hooks, and writes checkpoints."""

    def __init__(self, run: Run, network: Network, hooks: Sequence[Hook], folder: Folder) -> None:
        super().__init__(run, hooks)
        self.network, self.folder = network, folder
        self.interval = Interval(run.estimator.config.checkpoint_every)
        self.first_step = run.global_step
        self._saved_at: int | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.interval.begin(self.run.global_step)
        self.notify("begin")

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        if batch:
            self.network.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        run = self.run
        run.global_step = self.first_step + batch + 1
        run.loss = _loss(logs)
        run.values = {name: metric.values() for name, metric in self.network.step_values.items()}
        self.notify("after_execution")
        if self.interval.is_due(run.global_step):
            self._save()
        if run.stopped:
            self.model.stop_training = True

    def finish(self) -> None:
        """Write the last checkpoint, unless it is written already, and end the run."""
        if self._saved_at != self.run.global_step:
            self._save()
        super().finish()

    def _save(self) -> None:
        run = self.run
        logs = {} if run.loss is None else {"loss": run.loss}
        keep = run.estimator.config.keep
        checkpoints.write(self.folder, keep, self.network.model, run.global_step, logs)
        self._saved_at = run.global_step
        self.interval.begin(run.global_step)
        self.notify("after_save")


class EvaluationCallback(_HookCallback):
    """Calls hooks during an evaluation or a prediction."""

    _begun = False

    def on_test_begin(self, logs: Logs | None = None) -> None:
        # A prediction is several calls of `predict`, as its results are consumed.
        if not self._begun:
            self.notify("begin")
        self._begun = True

    on_predict_begin = on_test_begin

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        if self.hooks:
            self.run.loss = _loss(logs)
        self.notify("after_execution")
        self.model.stop_evaluating = self.run.stopped

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self.notify("after_execution")
        self.model.stop_predicting = self.run.stopped


def _loss(logs: Logs | None) -> float:
    assert logs is not None
    return float(np.asarray(logs["loss"]))
