"""Progress of an estimator's runs, on the standard error."""

import logging
import sys
import time

import keras
from convoy import distributed
from convoy.estimator.hooks import log
from convoy.progress_bar import Output
from convoy.types import Logs


class ProgressCallback(keras.callbacks.Callback):
    """Shows the steps that are done: a bar on a terminal, else a line at intervals.

    It shows nothing if the log lines of the estimator are shown, which report the same.

    Args:
        name: name of the run in a line.
        steps: steps of the run, if that is known.
        output: destination; by default the standard error.
    """

    def __init__(self, name: str, steps: int | None, output: Output | None = None) -> None:
        super().__init__()
        self.name, self.steps = name, steps
        self.output = output or Output(sys.stderr)
        self.enabled = distributed.is_first() and not log.isEnabledFor(logging.INFO)
        self._began = time.monotonic()

    def on_train_begin(self, logs: Logs | None = None) -> None:
        del logs
        if self.enabled and self.steps is not None:
            self.output.begin(self.steps, "compiling ...")

    on_test_begin = on_train_begin

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        del logs
        if not self.enabled:
            return
        done, seconds = batch + 1, max(1e-9, time.monotonic() - self._began)
        total = "" if self.steps is None else f" of {self.steps:,}"
        speed = f"{done / seconds:,.1f} steps/s"
        line = f"{self.name}: {done:,}{total} steps, {speed}"
        self.output.advance(done, self.name, {"": speed}, line)

    on_test_batch_end = on_train_batch_end

    def on_train_end(self, logs: Logs | None = None) -> None:
        del logs
        self.output.end()

    on_test_end = on_train_end
