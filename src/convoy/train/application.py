"""One run of `convoy train`: training, validation and the summary at the end."""

from __future__ import annotations

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
import numpy as np
from convoy import distributed
from convoy.checkpoint.preemption import Preempted
from convoy.progress_bar import Output
from convoy.report.recording import Recording
from convoy.train import resume
from convoy.train.experiment_trackers import Listener, check_installed, trackers
from convoy.train.input import Images, open_images
from convoy.train.metrics_row import Record
from convoy.train.options import Options
from convoy.train.progress_callback import Watch
from convoy.train.recipe import as_recipe
from convoy.train.run_folder import RunFolder, default_folder, find_checkpoints
from convoy.train.run_settings import make_plan
from convoy.train.training import Training, describe, prepare_training, train, training_strategy
from convoy.train.validation import Validation, load_checkpoint, sweep_metrics, validation_strategy
from convoy.units import format_clock
from convoy_command.parser import INTERRUPTED


class Application:
    """One run.

    Args:
        options: of the run.
        output: where it speaks.

    Raises:
        ValueError: if options contradict each other; nothing has been written then.
    """

    def __init__(self, options: Options, output: Output) -> None:
        self.output = output
        self.folder = RunFolder(
            Path(options.output_dir or default_folder(options.model, options.dataset)),
            Path(options.checkpoint_output_dir) if options.checkpoint_output_dir else None,
        )
        resume.check_resumable(options)
        self.plan = make_plan(options)
        resume.check_folder(options, self.folder)
        # With the seed that was drawn, but else as they were given, so that all notes come again.
        self.asked = replace(options, seed=self.plan.seed)
        options = self.plan.options
        self.given = self._given_checkpoints(options)
        self.listeners: list[Listener] = []
        self.strategies: list[convoy.Strategy] = []
        self.report: Path | None = None
        check_installed(options)

    def _given_checkpoints(self, options: Options) -> list[Path] | None:
        """Return the checkpoints to validate, if they are not those that the run will write."""
        if options.checkpoint_input_dir is None:
            return None
        folder = Path(options.checkpoint_input_dir)
        if options.training and folder.resolve() == self.folder.checkpoints.resolve():
            return None
        return find_checkpoints(folder)

    def run(self) -> int:
        """Run the phases that were asked for; returns the exit status."""
        images, training, validation = self._prepare()
        options = self.plan.options
        self.folder.open(as_recipe(options), goes_on=options.resume)
        with (
            contextlib.closing(self.folder),
            trackers(options, self.folder.path) as self.listeners,
            self._recorded(),
        ):
            return self._run_phases(images, training, validation)

    def _recorded(self) -> AbstractContextManager[Any]:
        """Record what both phases do, if that was asked for."""
        if not self.plan.options.report:
            return contextlib.nullcontext()
        self.report = self.folder.report
        recording = Recording(self.report, max((s.devices for s in self.strategies), key=len))
        for strategy in self.strategies:
            recording.observe(strategy)
        return recording

    def _run_phases(
        self, images: Images, training: Training | None, validation: Validation | None
    ) -> int:
        began = time.perf_counter()
        watch: Watch | None = None
        records: list[Record] = []
        try:
            if training is not None:
                describe(training, self.output)
                if since := resume.where_it_goes_on(self.plan, self.folder):
                    self.output.line(f"resumed             {since}")
                watch = train(training, images, self.folder, self.output, self.listeners)
                if self.plan.options.compile_only:
                    self.output.line("compiled; its program is in the program cache")
                    return 0
            if validation is not None:
                records = self._validate(validation, training)
        except KeyboardInterrupt:
            self.output.end()
            print(f"Interrupted; the run so far is in {self.folder.path}", file=sys.stderr)
            self._say_how_to_go_on(training)
            return INTERRUPTED
        except Preempted:
            self.output.end()
            self._say_how_to_go_on(training)
            raise
        self._summarise(watch, records, time.perf_counter() - began)
        return 1 if self.folder.failures else 0

    def _say_how_to_go_on(self, training: Training | None) -> None:
        if training is not None and self.plan.options.state_every != resume.NEVER:
            folder = shlex.quote(str(self.folder.path))
            how = "To resume" if distributed.count() == 1 else "To resume, launch"
            print(f"{how}: convoy train --resume --output-dir {folder}", file=sys.stderr)

    def _prepare(self) -> tuple[Images, Training | None, Validation | None]:
        """Do all that can fail before anything is written."""
        options = self.plan.options
        # The larger one first: a CPU is divided into devices only once.
        makers = [(training_strategy, self.plan.devices, options.training)]
        makers += [(validation_strategy, self.plan.validation_replicas, options.validation)]
        makers.sort(key=lambda maker: -maker[1])
        strategies = {make: make(self.plan) for make, _, wanted in makers if wanted}
        self.strategies = list(strategies.values())
        keras.utils.set_random_seed(self.plan.seed)
        images = open_images(options, self.plan.info, self.plan.seed)
        if images.train_samples not in (0, self.plan.info.train):
            self.plan = make_plan(self.asked, images.train_samples)
        for note in (*self.plan.notes, *resume.differences(self.plan.options, self.folder)):
            print(f"convoy train: {note}", file=sys.stderr)
        training = validation = None
        if options.training:
            training = prepare_training(self.plan, strategies[training_strategy])
        if options.validation and not options.compile_only:
            validation = Validation(self.plan, strategies[validation_strategy], images)
            for path in self.given or []:
                load_checkpoint(validation.network, path)
        return images, training, validation

    def _validate(self, validation: Validation, training: Training | None) -> list[Record]:
        options = self.plan.options
        rest = (self.folder, self.output, self.listeners)
        paths = self.folder.written if self.given is None else self.given
        if paths:
            records = validation.of_checkpoints(paths, *rest)
            if options.clean_dir:
                self.folder.remove_checkpoints()
            return records
        if self.given is not None:
            self._warn(f"{options.checkpoint_input_dir} has no checkpoint.")
        weights: list[np.ndarray] | None = None
        if training is not None:
            self._warn("No checkpoints to evaluate, evaluating final training weights.")
            weights = [value.numpy() for value in training.model.weights]
        else:
            self._warn("No checkpoints and no training: the weights are random.")
        epoch = float(options.num_epochs) if training is not None else 0.0
        return [validation.of_weights(weights, epoch, *rest)]

    def _warn(self, text: str) -> None:
        print(f"convoy train: {text}", file=sys.stderr)

    def _summarise(self, watch: Watch | None, records: list[Record], seconds: float) -> None:
        rows: list[tuple[str, Any]] = []
        if watch is not None and watch.calls:
            # The first call has the compilation in it.
            calls = watch.calls[1:] or watch.calls
            speed = len(calls) / sum(1 / call.throughput for call in calls)
            rows.append(("throughput", f"{speed:,.1f} images/s"))
            rows.append(("training loss", f"{watch.calls[-1].loss:.4f}"))
            rows.append(("training accuracy", f"{watch.calls[-1].accuracy:.2%}"))
        paths = self.folder.written if self.given is None else self.given
        if records:
            best = max(range(len(records)), key=lambda number: records[number].accuracy)
            rows.append(("held-out accuracy", f"{records[-1].accuracy:.2%}"))
            if paths and not self.plan.options.clean_dir:
                rows.append(("best checkpoint", f"{paths[best]} ({records[best].accuracy:.2%})"))
            if self.plan.options.sweep:
                metrics = sweep_metrics(records, self.plan.options.target_accuracy)
                rows += [(name, f"{value:.6g}") for name, value in metrics.items()]
        elif paths:
            rows.append(("last checkpoint", paths[-1]))
        if watch is not None and records:
            rows.append(("time to train", format_clock(seconds)))
        rows.append(("run", self.folder.path))
        if self.report is not None:
            rows.append(("report", f"convoy report {self.report}"))
        if picture := self.folder.close():
            rows.append(("curves", picture))
        for name, value in rows:
            self.output.line(f"{name:<18} {value}")
