"""One run of `convoy train`: training, validation and the summary at the end."""

import contextlib
import shlex
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import convoy
import keras
from convoy import distributed
from convoy.checkpoint.preemption import Preempted
from convoy.progress_bar import Output
from convoy.report.recording import Recording
from convoy.train import resume
from convoy.train.experiment_trackers import check_installed, open_trackers
from convoy.train.flags import Options
from convoy.train.input import Images, open_images
from convoy.train.messages import notify
from convoy.train.metrics import MetricsRow
from convoy.train.mistakes import write_classification
from convoy.train.progress_callback import ProgressCallback
from convoy.train.recipe import as_recipe
from convoy.train.run_folder import RunFolder, default_folder, find_checkpoints
from convoy.train.run_log import RunLog
from convoy.train.run_settings import AUTO, make_run_settings
from convoy.train.training import (
    Training,
    compile_programs,
    describe,
    prepare_training,
    train,
    training_strategy,
)
from convoy.train.validation import Validation, load_checkpoint, sweep_metrics, validation_strategy
from convoy.units import format_clock, format_seconds
from convoy_command.parser import INTERRUPTED


class Application:
    """One run.

    Args:
        options: options of the run.
        output: destination of log lines and the progress bar.

    Raises:
        ValueError: if options contradict each other; no file has been written then.
    """

    def __init__(self, options: Options, output: Output) -> None:
        self.output = output
        path = Path(options.output_dir or default_folder(options.model, options.dataset))
        checkpoints = Path(options.checkpoint_output_dir or path / "checkpoints")
        if options.ckpt_all_instances and distributed.count() > 1:
            checkpoints /= f"rank{distributed.index()}"
        self.folder = RunFolder(path, checkpoints)
        resume.check_resumable(options)
        self.settings = make_run_settings(options)
        resume.check_folder(options, self.folder)
        # The options of the command line with the seed, so that the notes can be generated again.
        self._given_options = replace(options, seed=self.settings.seed)
        self.given_checkpoints = self._given_checkpoints(self.settings.options)
        self.strategies: list[convoy.Strategy] = []
        self.report: Path | None = None
        check_installed(options)

    def _given_checkpoints(self, options: Options) -> list[Path] | None:
        """Return the checkpoints to validate instead of those that the run will write, if any."""
        if options.checkpoint_input_dir is None:
            return None
        folder = Path(options.checkpoint_input_dir)
        if options.training and folder.resolve() == self.folder.checkpoints.resolve():
            return None
        return find_checkpoints(folder)

    @property
    def checkpoints(self) -> list[Path]:
        """The checkpoints that are validated."""
        return self.folder.written if self.given_checkpoints is None else self.given_checkpoints

    def run(self) -> int:
        """Run training and validation, as far as enabled; return the exit status."""
        images, training, validation = self._prepare()
        options = self.settings.options
        if options.compile_only and training is not None:
            return self._compile(images, training)
        self.folder.open(as_recipe(options), resumes=options.resume)
        with (
            contextlib.closing(self.folder),
            open_trackers(options, self.folder.path) as trackers,
            self._recording(),
        ):
            log = RunLog(self.folder, self.output, trackers)
            return self._run_phases(images, training, validation, log)

    def _compile(self, images: Images, training: Training) -> int:
        describe(training, images, self.output)
        (strategy,) = self.strategies
        for name, seconds in compile_programs(training, images, strategy).items():
            self.output.line(f"compiled            {name}: {format_seconds(seconds)}")
        self.output.line("Nothing was trained. The programs are in the compilation cache.")
        return 0

    def _recording(self) -> AbstractContextManager[Any]:
        """Record both phases for `convoy report`, if that is enabled."""
        if not self.settings.options.report:
            return contextlib.nullcontext()
        self.report = self.folder.report
        recording = Recording(self.report, max((s.devices for s in self.strategies), key=len))
        for strategy in self.strategies:
            recording.observe(strategy)
        return recording

    def _run_phases(
        self,
        images: Images,
        training: Training | None,
        validation: Validation | None,
        log: RunLog,
    ) -> int:
        began = time.perf_counter()
        progress: ProgressCallback | None = None
        rows: list[MetricsRow] = []
        try:
            if training is not None:
                describe(training, images, self.output)
                if position := resume.resume_position(self.settings, self.folder):
                    self.output.line(position)
                progress = train(training, images, log)
            if validation is not None:
                rows = self._validate(validation, training, log)
                self._write_classification(validation, rows)
        except KeyboardInterrupt:
            self.output.end()
            print(f"Interrupted; the run so far is in {self.folder.path}", file=sys.stderr)
            self._print_how_to_resume(training)
            return INTERRUPTED
        except Preempted:
            self.output.end()
            self._print_how_to_resume(training)
            raise
        self._summarise(progress, rows, time.perf_counter() - began)
        return 1 if self.folder.failures else 0

    def _print_how_to_resume(self, training: Training | None) -> None:
        if training is not None and self.settings.options.state_every != resume.NEVER:
            folder = shlex.quote(str(self.folder.path))
            how = "To resume" if distributed.count() == 1 else "To resume, launch"
            print(f"{how}: convoy train --resume --output-dir {folder}", file=sys.stderr)

    def _prepare(self) -> tuple[Images, Training | None, Validation | None]:
        """Run all steps that can fail, before any file is written."""
        options = self.settings.options
        # The larger number of devices first, because a CPU is divided into devices only once.
        makers = [(training_strategy, self.settings.devices, options.training)]
        validates = options.validation and not options.compile_only
        makers += [(validation_strategy, self.settings.validation_devices, validates)]
        makers.sort(key=lambda maker: -maker[1])
        strategies = {make: make(self.settings) for make, _, enabled in makers if enabled}
        self.strategies = list(strategies.values())
        keras.utils.set_random_seed(self.settings.seed)
        images = open_images(options, self.settings.info, self.settings.seed)
        if images.train_samples not in (0, self.settings.info.train):
            self.settings = make_run_settings(self._given_options, images.train_samples)
        notes = resume.differences(self.settings.options, self.folder)
        for note in (*self.settings.notes, *notes):
            notify(note)
        training = validation = None
        if options.training:
            if options.pipeline_splits[:1] == [AUTO]:
                self.output.line("timing the layers, for balanced stages ...")
            training = prepare_training(self.settings, strategies[training_strategy])
        if validates:
            validation = Validation(self.settings, strategies[validation_strategy], images)
            for path in self.given_checkpoints or []:
                load_checkpoint(validation.network, path)
        return images, training, validation

    def _validate(
        self, validation: Validation, training: Training | None, log: RunLog
    ) -> list[MetricsRow]:
        options = self.settings.options
        if self.checkpoints:
            rows = validation.of_checkpoints(self.checkpoints, log)
            if options.clean_dir:
                self.folder.remove_checkpoints()
            return rows
        if self.given_checkpoints is not None:
            notify(f"{options.checkpoint_input_dir} has no checkpoint.")
        if training is None:
            notify("No checkpoints and no training: the weights are random.")
            return [validation.of_weights(None, 0.0, log)]
        notify("No checkpoints to evaluate, evaluating final training weights.")
        weights = [value.numpy() for value in training.model.weights]
        return [validation.of_weights(weights, float(options.num_epochs), log)]

    def _write_classification(self, validation: Validation, rows: list[MetricsRow]) -> None:
        """Add the confusion matrix of the best checkpoint to the report of a single process."""
        if self.report is None or distributed.count() > 1 or self.settings.options.synthetic_data:
            return
        best = max(range(len(rows)), key=lambda number: rows[number].accuracy)
        weights = self.checkpoints[best] if self.checkpoints else None
        names = self.settings.info.class_names
        found = validation.probabilities(weights)
        write_classification(self.report, validation.images.test, found, names)

    def _summarise(
        self, progress: ProgressCallback | None, rows: list[MetricsRow], seconds: float
    ) -> None:
        options = self.settings.options
        summary: list[tuple[str, Any]] = []
        if progress is not None and progress.calls:
            # The first call also reads files and fills caches.
            calls = progress.calls[1:] or progress.calls
            speed = len(calls) / sum(1 / call.throughput for call in calls)
            summary.append(("throughput", f"{speed:,.1f} images/s"))
            summary.append(("training loss", f"{progress.calls[-1].loss:.4f}"))
            summary.append(("training accuracy", f"{progress.calls[-1].accuracy:.2%}"))
        if rows:
            best = max(range(len(rows)), key=lambda number: rows[number].accuracy)
            summary.append(("held-out accuracy", f"{rows[-1].accuracy:.2%}"))
            if self.checkpoints and not options.clean_dir:
                checkpoint = f"{self.checkpoints[best]} ({rows[best].accuracy:.2%})"
                summary.append(("best checkpoint", checkpoint))
            if options.sweep:
                metrics = sweep_metrics(rows, options.target_accuracy)
                summary += [(name, f"{value:.6g}") for name, value in metrics.items()]
        elif self.checkpoints:
            summary.append(("last checkpoint", self.checkpoints[-1]))
        if progress is not None and rows:
            summary.append(("time to train", format_clock(seconds)))
        summary.append(("run", self.folder.path))
        if self.report is not None:
            summary.append(("report", f"convoy report {self.report}"))
        if curves := self.folder.close():
            summary.append(("curves", curves))
        for name, value in summary:
            self.output.line(f"{name:<18} {value}")
