"""Progress of a run: throughput, progress bar, epoch lines, and the target at which to stop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import keras
from convoy.progress_bar import Output

from cosmoflow.network import MAE
from cosmoflow.run_folder import RunFolder
from cosmoflow.run_plan import RunPlan

TABLE_HEAD = "Iteration, Batches/Second, Samples/Second"


@dataclass
class Throughput:
    """Device calls of a run. The first one compiles and is not counted, unless it is the only one.

    Attributes:
        plan: plan of the run.
        first: steps and seconds of the first call.
        calls: steps and seconds of each other call.
    """

    plan: RunPlan
    first: tuple[int, float] | None = None
    calls: list[tuple[int, float]] = field(default_factory=list)

    def add(self, steps: int, seconds: float) -> None:
        if self.first is None:
            self.first = steps, seconds
        else:
            self.calls.append((steps, seconds))

    @property
    def _counted(self) -> list[tuple[int, float]]:
        return self.calls if self.calls or self.first is None else [self.first]

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self._counted)

    @property
    def samples_per_second(self) -> float:
        steps = sum(steps for steps, _ in self._counted)
        return steps * self.plan.samples_per_step / self.seconds if self.seconds else 0.0

    @property
    def table(self) -> list[str]:
        rows = [
            f"{number}, {steps / seconds:.3f}, {steps / seconds * self.plan.samples_per_step:.3f}"
            for number, (steps, seconds) in enumerate(self._counted, start=1)
        ]
        return [TABLE_HEAD, *rows]

    @property
    def final_line(self) -> str:
        return (
            f"Took {self.seconds / 60:.3f} minutes, i.e. {self.samples_per_second:.2f} samples per "
            f"second for batch-size {self.plan.batch.micro_batch} and no. IPUs = "
            f"{self.plan.batch.replicas}"
        )


class Progress:
    """Reports the progress of a run, for `fit` and for estimators.

    Args:
        plan: plan of the run.
        folder: folder for the values of epochs.
        output: progress bar, or lines where there is no terminal.
    """

    def __init__(self, plan: RunPlan, folder: RunFolder, output: Output) -> None:
        self.plan = plan
        self.folder = folder
        self.output = output
        self.throughput = Throughput(plan)
        self._done = 0
        self._since = time.perf_counter()

    def begin(self, done: int = 0) -> None:
        """Begin after some steps of the run that were done before."""
        self._done = done
        self.output.line("Compiling and Warmup...")
        self.output.begin(self.plan.steps, "compiling ...")
        self.restart_clock()

    def restart_clock(self) -> None:
        """Exclude the time until now, which was not spent on training."""
        self._since = time.perf_counter()

    def after_call(self, done: int, loss: float) -> None:
        """Report a device call.

        Args:
            done: steps of the run that are done now.
            loss: current loss.
        """
        now = time.perf_counter()
        steps, seconds = done - self._done, now - self._since
        self._done, self._since = done, now
        if self.throughput.first is None:
            self.output.line(f"Duration: {seconds:.3f} seconds")
        elif not self.output.is_terminal:
            self.output.line(f"{seconds / steps:.6f} sec/itr.")
        self.throughput.add(steps, seconds)
        speed = steps * self.plan.samples_per_step / seconds
        epochs = self.plan.settings.data.n_epochs
        epoch = min(-(-done // self.plan.steps_per_epoch), epochs)
        self.output.advance(
            done,
            f"epoch {epoch}/{epochs}",
            {"": f"{speed:,.1f} samples/s", "loss": f"{loss:.4f}"},
        )

    def after_epoch(self, epoch: int, values: Mapping[str, float]) -> None:
        """Report the values of an epoch, counted from 1."""
        row = {"epoch": epoch, **values, "samples_per_second": self.throughput.samples_per_second}
        self.folder.add(row)
        shown = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        self.output.line(f"epoch {epoch}/{self.plan.settings.data.n_epochs}  {shown}")

    def end(self) -> None:
        self.output.end()

    def reached_target(self, values: Mapping[str, float]) -> bool:
        """Return whether the validation MAE is below the target; if so, report it."""
        target = self.plan.settings.train.target_mae
        reached = target is not None and values.get(f"val_{MAE}", target) < target
        if reached:
            self.output.line(f"The validation MAE is below the target of {target}.")
        return reached


class ProgressCallback(keras.callbacks.Callback):
    """Reports the progress of `fit`, and stops it at the target."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress = progress
        self._epoch = 0

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        del logs
        self.progress.begin()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        del logs
        self._epoch = epoch
        # Excludes validation. The first epoch begins with compilation, which counts.
        if epoch:
            self.progress.restart_clock()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        done = self._epoch * self.progress.plan.steps_per_epoch + batch + 1
        self.progress.after_call(done, float((logs or {})["loss"]))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        values = {name: float(value) for name, value in (logs or {}).items()}
        self.progress.after_epoch(epoch + 1, values)
        if self.progress.reached_target(values):
            self.model.stop_training = True

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        del logs
        self.progress.end()
