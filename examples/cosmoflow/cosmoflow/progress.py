"""The host's part of training: it takes times, reports, and stops at the target."""

from __future__ import annotations

import time
from typing import Any

import keras
from convoy.progress_bar import Output

from cosmoflow.network import MAE
from cosmoflow.run_folder import RunFolder
from cosmoflow.run_plan import Plan
from cosmoflow.throughput import Throughput


class Report:
    """What is said of a run as it goes on, whoever trains.

    Args:
        plan: of the run.
        folder: where the values of epochs go.
        output: where progress is shown.
    """

    def __init__(self, plan: Plan, folder: RunFolder, output: Output) -> None:
        self.plan = plan
        self.folder = folder
        self.output = output
        self.throughput = Throughput(plan)
        self._done = 0
        self._since = time.perf_counter()

    def start_at(self, done: int) -> None:
        """Begin where so many steps were done before."""
        self._done = done

    def begin(self) -> None:
        self.output.line("Compiling and Warmup...")
        self.output.begin(self.plan.steps, "compiling ...")
        self.resume_clock()

    def resume_clock(self) -> None:
        """Take the time from here on; what was before is not training."""
        self._since = time.perf_counter()

    def after_call(self, done: int, loss: float) -> None:
        """Take note of a device call, after which so many steps of the run are done."""
        now = time.perf_counter()
        steps, seconds = done - self._done, now - self._since
        self._done, self._since = done, now
        first = self.throughput.warm_up is None
        self.throughput.add(steps, seconds)
        speed = steps * self.plan.samples_per_step / seconds
        if first:
            self.output.line(f"Duration: {seconds:.3f} seconds")
        elif not self.output.is_terminal:
            self.output.line(f"{seconds / steps:.6f} sec/itr.")
        epoch = min(-(-done // self.plan.steps_per_epoch), self.plan.settings.data.n_epochs)
        self.output.advance(
            done,
            f"epoch {epoch}/{self.plan.settings.data.n_epochs}",
            {"": f"{speed:,.1f} samples/s", "loss": f"{loss:.4f}"},
        )

    def after_epoch(self, epoch: int, values: dict[str, float]) -> None:
        """Take note of the values of an epoch, counted from 1."""
        row = {"epoch": epoch, **values, "samples_per_second": self.throughput.samples_per_second}
        self.folder.add(row)
        shown = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        self.output.line(f"epoch {epoch}/{self.plan.settings.data.n_epochs}  {shown}")

    def end(self) -> None:
        self.output.end()

    def reached_target(self, values: dict[str, float]) -> bool:
        """Say whether the validation MAE is good enough to stop, and tell the user."""
        target = self.plan.settings.train.target_mae
        reached = target is not None and values.get(f"val_{MAE}", target) < target
        if reached:
            self.output.line(f"The validation MAE is below the target of {target}.")
        return reached


class Watch(keras.callbacks.Callback):
    """Tells a report of what `fit` does."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        del logs
        self.report.begin()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        del logs
        self._epoch = epoch
        # What came before was validation; the first epoch begins with compiling.
        if epoch:
            self.report.resume_clock()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        done = self._epoch * self.report.plan.steps_per_epoch + batch + 1
        self.report.after_call(done, float(logs["loss"]))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        values = {name: float(value) for name, value in (logs or {}).items()}
        self.report.after_epoch(epoch + 1, values)
        if self.report.reached_target(values):
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        del logs
        self.report.end()
