"""The callback of the training phase: metrics, log lines and checkpoints after device calls."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict

import keras
from convoy import distributed
from convoy.engine.numerics.numerics import LOSS_SCALE_LOG
from convoy.timing import compilation_seconds, execution_seconds
from convoy.train.learning_rate import Schedule
from convoy.train.metrics import MetricsRow, average
from convoy.train.run_log import RunLog
from convoy.train.run_settings import RunSettings
from convoy.types import Json, Logs
from convoy.units import format_clock

# Values that may differ between two equal runs.
_TIMES = {"throughput": None, "compilation": None}


class ProgressCallback(keras.callbacks.Callback):
    """Computes the metrics of each device call, logs them, and saves weights when they are due.

    Args:
        settings: settings of the run.
        schedule: learning-rate schedule.
        log: destinations of metrics and checkpoints.
    """

    earlier_names = ("Watch",)
    """Names of this class in checkpoints of earlier versions."""

    def __init__(self, settings: RunSettings, schedule: Schedule, log: RunLog) -> None:
        super().__init__()
        self.settings = settings
        self.schedule = schedule
        self.log = log
        self.calls: list[MetricsRow] = []
        self._since_log: list[MetricsRow] = []
        self._steps, self._sums = 0, {"loss": 0.0, "training_accuracy": 0.0}
        self._in_call = 0
        """Micro-batches of the current device call that were computed."""
        self._first: tuple[float, int] | None = None
        """Time and micro-batches of the first report of the current device call."""

    def get_state(self) -> Json:
        """Return the state for a checkpoint, without times: equal runs have equal states."""
        folder = self.log.folder
        return {
            "rows": len(folder.rows),
            "checkpoints": [path.name for path in folder.written],
            "since_log": [asdict(row) | _TIMES for row in self._since_log],
            "steps": self._steps,
            "sums": dict(self._sums),
        }

    def set_state(self, state: Json) -> None:
        """Restore the state of an earlier run."""
        self.log.folder.restore(state["rows"], state["checkpoints"])
        self._since_log = [
            MetricsRow(**row | {"throughput": math.nan}) for row in state["since_log"]
        ]
        self._steps, self._sums = state["steps"], dict(state["sums"])

    def on_train_begin(self, logs: Logs | None = None) -> None:
        del logs
        self._time = time.perf_counter()
        compilation_seconds(self._time)  # from now on
        self.log.output.begin(self.settings.events.updates, "compiling ...")

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        del logs
        self._epoch = epoch
        self._steps, self._sums = 0, {"loss": 0.0, "training_accuracy": 0.0}

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        options, events = self.settings.options, self.settings.events
        row = self._make_row(batch + 1, logs or {})
        if options.fp_exceptions and not math.isfinite(row.loss):
            raise FloatingPointError(
                f"--fp-exceptions: the loss is {row.loss} after {row.update} weight updates. Pass "
                "a lower learning rate, or check the data."
            )
        self.calls.append(row)
        self._since_log.append(row)
        self._show(row)
        if events.logs_at(row.update):
            batches = row.update * self.settings.batch.micro_batches_per_update
            self.log.log(average(self._since_log), f"batch {batches}")
            self._since_log = []
        if events.saves_at(row.update):
            self.log.folder.save(self.model, row.epoch, averaged=bool(options.ema))

    def on_train_end(self, logs: Logs | None = None) -> None:
        del logs
        self.log.output.end()

    def note_compilation(self) -> None:
        """Write a line if there is no bar, which shows the compilation already."""
        if not self.log.output.is_terminal and not self.calls:
            self.log.output.line("compiling ...")

    def advance(self, micro_batches: int) -> None:
        """Show the progress of a device call that has not ended.

        Args:
            micro_batches: micro-batches of this process that were computed since the last call of
                this method.
        """
        batch, events = self.settings.batch, self.settings.events
        # Assumes that other processes have made the same progress.
        self._in_call += micro_batches * distributed.count()
        now = time.perf_counter()
        # The speed is measured since the first report, because data is read and memory allocated
        # before it.
        self._first = self._first or (now, self._in_call)
        since, before = self._first
        if not self.log.output.is_due() or self._in_call == before:
            return
        updates = self._in_call / batch.micro_batches_per_update
        updates += self._epoch * events.keras_epoch + self._steps // batch.gradient_accumulation
        speed = (self._in_call - before) * batch.micro_batch / execution_seconds(since, now)
        shown = f"{speed:,.1f} images/s"
        epoch_seconds = events.updates_per_epoch * batch.global_batch / speed
        line = (
            f"update {updates:.2f} of {events.updates}: {shown}; an epoch takes about "
            f"{format_clock(epoch_seconds)}"
        )
        self._show_progress(updates, {"": shown}, line)

    def _make_row(self, steps: int, logs: Logs) -> MetricsRow:
        """Return the metrics of the last device call, from Keras's means over the epoch so far."""
        means = {}
        for name, before in self._sums.items():
            total = float(logs[name]) * steps
            means[name] = (total - before) / (steps - self._steps)
            self._sums[name] = total
        now = time.perf_counter()
        batch, events = self.settings.batch, self.settings.events
        samples = (steps - self._steps) * batch.micro_batch * batch.replicas
        self._steps = steps
        update = self._epoch * events.keras_epoch + steps // batch.gradient_accumulation
        compiling, elapsed = compilation_seconds(self._time), execution_seconds(self._time, now)
        self._time, self._in_call, self._first = now, 0, None
        return MetricsRow(
            "training",
            update,
            events.epoch_at(update),
            means["loss"],
            means["training_accuracy"],
            samples / elapsed,
            float(self.schedule(update - 1)),
            None if self.calls else compiling,
            float(logs[LOSS_SCALE_LOG]) if LOSS_SCALE_LOG in logs else None,
        )

    def _show(self, row: MetricsRow) -> None:
        values = {
            "": f"{row.throughput:,.0f} images/s",
            "loss": f"{row.loss:.4f}",
            "accuracy": f"{row.accuracy:.2%}",
            "lr": f"{row.learning_rate:.4g}",
        }
        self._show_progress(row.update, values)

    def _show_progress(
        self, updates: float, values: Mapping[str, str], line: str | None = None
    ) -> None:
        epochs, events = self.settings.options.num_epochs, self.settings.events
        current = min(math.ceil(events.epoch_at(updates)), epochs)
        self.log.output.advance(updates, f"epoch {current}/{epochs}", values, line)
