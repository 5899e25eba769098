"""The loss of a run for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from convoy.data.event_file import EventFile
from convoy.estimator.hooks import Cadence, Hook, Run


class SummaryHook(Hook):
    """Writes the loss into an event file, at most once for each device call.

    Args:
        folder: where the file is made.
        every_steps: steps between two values.
    """

    def __init__(self, folder: Path, every_steps: int) -> None:
        self.folder = folder
        self.cadence = Cadence(every_steps)
        self._file: EventFile | None = None

    def begin(self, run: Run) -> None:
        self.cadence.begin(run.global_step)

    def after_execution(self, run: Run) -> None:
        if run.loss is None or not self.cadence.due(run.global_step):
            return
        if self._file is None:
            self._file = EventFile(self.folder)
        self._file.scalars(run.global_step, {"loss": run.loss})
        self.cadence.begin(run.global_step)

    def end(self, run: Run) -> None:
        del run
        if self._file is not None:
            self._file.close()
            self._file = None
