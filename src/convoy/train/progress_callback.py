"""The callback of the training phase: metrics, log lines and checkpoints after device calls."""

import math
import time
from dataclasses import asdict

import keras
from convoy.train.learning_rate import Schedule
from convoy.train.metrics import MetricsRow, average
from convoy.train.run_log import RunLog
from convoy.train.run_settings import RunSettings
from convoy.types import Json, Logs

# Values that differ between two runs with the same result.
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
        self._began = self._time = time.perf_counter()
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
                f"--fp-exceptions: the loss is {row.loss} after {row.update} weight updates."
            )
        self.calls.append(row)
        self._since_log.append(row)
        self._show(row)
        if events.logs_at(row.update):
            batches = row.update * self.settings.batch.micro_batches_per_update
            self.log.log(average(self._since_log), f"batch {batches}")
            self._since_log = []
        if options.compile_only:
            self.model.stop_training = True
        elif events.saves_at(row.update):
            self.log.folder.save(self.model, row.epoch, averaged=bool(options.ema))

    def on_train_end(self, logs: Logs | None = None) -> None:
        del logs
        self.log.output.end()

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
        elapsed, self._time = now - self._time, now
        return MetricsRow(
            "training",
            update,
            events.epoch_at(update),
            means["loss"],
            means["training_accuracy"],
            samples / elapsed,
            float(self.schedule(update - 1)),
            None if self.calls else now - self._began,
            float(logs["loss_scaling_factor"]) if "loss_scaling_factor" in logs else None,
        )

    def _show(self, row: MetricsRow) -> None:
        epochs = self.settings.options.num_epochs
        current = min(math.ceil(row.epoch), epochs)
        values = {
            "": f"{row.throughput:,.0f} images/s",
            "loss": f"{row.loss:.4f}",
            "accuracy": f"{row.accuracy:.2%}",
            "lr": f"{row.learning_rate:.4g}",
        }
        self.log.output.advance(row.update, f"epoch {current}/{epochs}", values)
