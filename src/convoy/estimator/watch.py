"""What an estimator does between device calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from convoy.checkpoint.policy import Interval
from convoy.estimator.hooks import Cadence, Hook, Run
from convoy.estimator.network import Network
from convoy.estimator.saved import Saved


class WatchTraining(keras.callbacks.Callback):
    """Counts steps, tells hooks, and writes checkpoints."""

    def __init__(
        self, run: Run, network: Network, hooks: Sequence[Hook], checkpoints: Saved
    ) -> None:
        super().__init__()
        self.run, self.network, self.hooks, self.checkpoints = run, network, hooks, checkpoints
        every = Interval(run.estimator.config.checkpoint_every)
        self.cadence = Cadence(every.steps, every.seconds)
        self.first = run.global_step
        self._saved_at: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        del logs
        self.cadence.begin(self.run.global_step)
        for hook in self.hooks:
            hook.begin(self.run)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        del logs
        if batch:
            self.network.forget()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        run = self.run
        run.global_step = self.first + batch + 1
        run.loss = float(np.asarray(logs["loss"]))
        run.values = {name: kept.values() for name, kept in self.network.recorded.items()}
        for hook in self.hooks:
            hook.after_execution(run)
        if self.cadence.due(run.global_step):
            self._save()
        if run.stopped:
            self.model.stop_training = True

    def finish(self) -> None:
        """Write the end of the run, if it is not written yet."""
        if self._saved_at != self.run.global_step:
            self._save()
        for hook in self.hooks:
            hook.end(self.run)

    def _save(self) -> None:
        run = self.run
        logs = {} if run.loss is None else {"loss": run.loss}
        self.checkpoints.write(self.network.model, run.global_step, logs)
        self._saved_at = run.global_step
        self.cadence.begin(run.global_step)
        for hook in self.hooks:
            hook.after_save(run)


class WatchEvaluation(keras.callbacks.Callback):
    """Tells hooks of an evaluation or a prediction."""

    def __init__(self, run: Run, hooks: Sequence[Hook]) -> None:
        super().__init__()
        self.run, self.hooks = run, hooks
        self._begun = False

    def on_test_begin(self, logs: Any = None) -> None:
        del logs
        self._begin()

    def on_predict_begin(self, logs: Any = None) -> None:
        del logs
        self._begin()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch
        if self.hooks:
            self.run.loss = float(np.asarray(logs["loss"]))
        self._after()
        self.model.stop_evaluating = self.run.stopped

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        self._after()
        self.model.stop_predicting = self.run.stopped

    def _begin(self) -> None:
        # A prediction is several calls of `predict`, as its outcome is asked for.
        if not self._begun:
            for hook in self.hooks:
                hook.begin(self.run)
        self._begun = True

    def _after(self) -> None:
        for hook in self.hooks:
            hook.after_execution(self.run)

    def finish(self) -> None:
        """Tell hooks of the end."""
        for hook in self.hooks:
            hook.end(self.run)
