"""The host's part of training: it counts, reports and saves after each device call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import keras
from convoy.progress_bar import Output
from convoy.train.learning_rate import Schedule
from convoy.train.metrics_row import Record, average
from convoy.train.run_folder import RunFolder
from convoy.train.run_settings import RunPlan

# What differs between two runs that are the same.
_TIMELESS = {"throughput": None, "compilation": None}


class Watch(keras.callbacks.Callback):
    """Makes a record of every device call, and acts at host events.

    Args:
        plan: of the run.
        schedule: the learning rate.
        folder: where records and checkpoints go.
        output: where progress is shown.
        listeners: are called with every record that is logged.
    """

    def __init__(
        self,
        plan: RunPlan,
        schedule: Schedule,
        folder: RunFolder,
        output: Output,
        listeners: list[Callable[[Record], None]],
    ) -> None:
        super().__init__()
        self.plan = plan
        self.schedule = schedule
        self.folder = folder
        self.output = output
        self.listeners = listeners
        self.calls: list[Record] = []
        self._since_log: list[Record] = []
        self._steps, self._sums = 0, {"loss": 0.0, "training_accuracy": 0.0}

    def get_state(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold, without times: equal runs have equal states."""
        return {
            "rows": len(self.folder.records),
            "checkpoints": [path.name for path in self.folder.written],
            "since_log": [asdict(record) | _TIMELESS for record in self._since_log],
            "steps": self._steps,
            "sums": dict(self._sums),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where another run was."""
        self.folder.go_on(state["rows"], state["checkpoints"])
        self._since_log = [Record(**row | {"throughput": math.nan}) for row in state["since_log"]]
        self._steps, self._sums = state["steps"], dict(state["sums"])

    def on_train_begin(self, logs: Any = None) -> None:
        del logs
        self._began = self._time = time.perf_counter()
        self.output.begin(self.plan.events.updates, "compiling ...")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        del logs
        self._epoch = epoch
        self._steps, self._sums = 0, {"loss": 0.0, "training_accuracy": 0.0}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        record = self._record(batch + 1, logs)
        if self.plan.options.fp_exceptions and not math.isfinite(record.loss):
            raise FloatingPointError(
                f"--fp-exceptions: the loss is {record.loss} after {record.update} weight updates."
            )
        self.calls.append(record)
        self._since_log.append(record)
        self._show(record)
        if self.plan.events.logs_at(record.update):
            self._log()
        if self.plan.options.compile_only:
            self.model.stop_training = True
        elif self.plan.events.saves_at(record.update):
            self.folder.save(self.model, record.epoch, averaged=bool(self.plan.options.ema))

    def on_train_end(self, logs: Any = None) -> None:
        del logs
        self.output.end()

    def _record(self, steps: int, logs: Any) -> Record:
        """Take apart the means since the epoch began, to have those of this call."""
        means = {}
        for name, before in self._sums.items():
            total = float(logs[name]) * steps
            means[name] = (total - before) / (steps - self._steps)
            self._sums[name] = total
        now = time.perf_counter()
        batch, events = self.plan.batch, self.plan.events
        samples = (steps - self._steps) * batch.micro_batch * batch.replicas
        self._steps = steps
        update = self._epoch * events.keras_epoch + steps // batch.accumulation
        elapsed, self._time = now - self._time, now
        return Record(
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

    def _show(self, record: Record) -> None:
        epochs = self.plan.options.num_epochs
        current = min(math.ceil(record.epoch), epochs)
        values = {
            "": f"{record.throughput:,.0f} images/s",
            "loss": f"{record.loss:.4f}",
            "accuracy": f"{record.accuracy:.2%}",
            "lr": f"{record.learning_rate:.4g}",
        }
        self.output.advance(record.update, f"epoch {current}/{epochs}", values)

    def _log(self) -> None:
        record = average(self._since_log)
        self._since_log = []
        self.folder.add(record)
        if self.output.is_terminal:
            self.output.line(record.sentence)
        else:
            batches = record.update * self.plan.batch.micro_batches_per_update
            self.output.line(f"batch {batches}: {record.fields}")
        for listener in self.listeners:
            listener(record)
